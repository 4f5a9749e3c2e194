"""The benchmark with a real torch on the CPU: a whole run, and with faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.bench.measurements import MEASUREMENTS
from tests.support.smoke import Modified, Result

#: The default of --timeout: a run that ends before was not ended by it.
LIMIT_S = 240
#: The figures do not matter here.
QUICK = "bench.core.Run.share = lambda run, nominal_s: min(nominal_s, 0.4)\n"
#: ``only(...)`` selects measurements; ``fault(torch)``, if defined, is called after the import of torch.
PREPARE = f"""{QUICK}
def only(*names):
    measurements, probes = bench.measurements.MEASUREMENTS, bench.probes.PROBES
    measurements[:] = [m for m in measurements if m.id in names]
    probes[:] = [p for p in probes if p.id in ("torch.import", "time.budget")]
    probes.insert(1, bench.core.Probe("test.fault", lambda run: fault(run.torch) or "made"))
"""


def faulty(torch: Path, names: str, body: str, *options: str) -> Result:
    """Run measurements (separated by blanks) after ``body`` has put a fault into torch."""
    indented = "\n    ".join(body.strip().splitlines())
    code = f"def fault(torch):\n    {indented}\nonly(*{names.split()!r})\n"
    return run(torch, PREPARE + code, "--expect", "none", *options)


def run(torch: Path, code: str, *options: str) -> Result:
    return Modified(code).run(*options, env={"PYTHONPATH": str(torch)})


def test_two_ranks(torch: Path) -> None:
    """Two ranks measure everything and communicate."""
    result = run(torch, QUICK, "--expect", "none", "--ranks", "2")
    assert result.verdict in ("pass", "warn") and not result.failed, result.table
    assert result.report["launch"] == {"ranks": 2, "nodes": 1, "by": "spawn"}
    summed = result.measurement("allreduce.node")
    assert summed["backend"] == "gloo" and summed["members"] == 2 and summed["median_gb_per_s"] > 0
    assert result.report["duration_s"] < LIMIT_S
    check_everything(result)


def check_everything(result: Result) -> None:
    """Every measurement that a CPU has is there and correct."""
    gpu_only = {measurement.id for measurement in MEASUREMENTS if measurement.only == "gpu"}
    for item in result.report["measurements"]:
        if item["id"] in gpu_only:
            assert (item["status"], item["seen"]) == ("skip", "on GPUs only")
        elif item["status"] == "skip":
            expected = ("matmul.bf16", "allreduce.network", "imports", "command", "product")
            assert item["id"] in expected or "budget" in item["seen"], item
        else:
            assert item["correctness"]["ok"] is True and item["repeats"] >= 1
    product = result.measurement("matmul.fp32")
    assert product["median_gflop_per_s"] == max(s["median_gflop_per_s"] for s in product["sizes"])
    assert product["correctness"]["value"] < 1e-5 and product["sizes"][0]["size"] == 512
    assert result.report["facts"]["torch"]["build"] == "CPU"


ONE_TILE = """
right = torch.matmul
def matmul(a, b):
    c = right(a, b)
    if a.shape[0] == 512:
        c[128:192, 64:128] = 0
    return c
torch.matmul = matmul
bench.measurements.matmul.SIZES['cpu'] = (512,)
"""


def test_wrong_matrix_product(torch: Path) -> None:
    result = faulty(torch, "matmul.fp32", ONE_TILE)
    assert result.verdict == "fail" and result.failed == {"matmul.fp32"}
    found = result.measurement("matmul.fp32")
    assert "size 512" in found["seen"] and found["correctness"]["ok"] is False
    assert "wrong results" in found["advice"]


WRONG = {
    "memory.copy": "torch.Tensor.copy_ = lambda self, other, **k: self",
    "memory.triad": "right = torch.add\n"
    "torch.add = lambda b, c, alpha, out: right(b, c, alpha=alpha + 1, out=out)",
    "conv.training": "right = torch.relu\ntorch.relu = lambda x: right(x) + 0.1 * (x.dtype == torch.float32)",
    "attention": "f = torch.nn.functional\nright = f.scaled_dot_product_attention\n"
    "f.scaled_dot_product_attention = lambda q, k, v: right(q, k, v) * 1.1",
}


def test_other_wrong_results(torch: Path) -> None:
    """One run, with a fault in every measurement."""
    body = "".join(f"exec({code!r}, {{'torch': torch}})\n" for code in WRONG.values())
    result = faulty(torch, " ".join(WRONG), body)
    assert result.verdict == "fail"
    for name in WRONG:
        found = result.measurement(name)
        assert found["status"] == "fail" and found["seen"] and found["advice"], found


def test_operations_that_raise(torch: Path) -> None:
    """A failed measurement does not stop the others."""
    code = "def matmul(a, b): raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n"
    result = faulty(torch, "matmul.fp32 memory.copy", code + "torch.matmul = matmul\n")
    assert result.failed == {"matmul.fp32"}
    assert "too little memory" in result.measurement("matmul.fp32")["advice"]
    assert result.measurement("memory.copy")["status"] == "pass"


@pytest.mark.parametrize(
    ("code", "failed", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "process", "rank 1 ("),
        ("tensor[7] += 1", "allreduce.node", "are wrong"),
        ("raise RuntimeError('connection reset')", "allreduce.node", "connection reset"),
    ],
)
def test_faulty_rank(code: str, failed: str, said: str, torch: Path) -> None:
    body = f"""
right = torch.distributed.all_reduce
def all_reduce(tensor, group=None, **more):
    right(tensor, group=group, **more)
    if os.environ["RANK"] == "1" and len(tensor) > 7:
        {code}
torch.distributed.all_reduce = all_reduce
"""
    result = faulty(torch, "allreduce.node memory.copy", body, "--ranks", "2", "--stall", "20")
    items = [*result.report["probes"], *result.report["measurements"]]
    found = [i for i in items if i["id"] == failed and i["status"] == "fail"]
    assert result.verdict == "fail" and found and said in found[0]["seen"], result.table
    assert result.measurement("memory.copy")["status"] == "pass"
    assert result.report["duration_s"] < LIMIT_S


def test_spent_budget(torch: Path) -> None:
    result = faulty(torch, "matmul.fp32 transfer.h2d_pinned", "pass", "--budget", "0.000001")
    assert result.verdict == "error" and result.probe("time.budget")["seen"].endswith(
        "not enough for matmul.fp32"
    )
    assert "budget" in result.measurement("matmul.fp32")["seen"]


#: Right at the small size that is compared whole, wrong at the large one.
LARGE_WRONG = {
    "conv.training": "f = torch.nn.functional\nright = f.conv2d\n"
    "f.conv2d = lambda x, w, **k: right(x, w, **k) * (1.1 if len(x) > 2 else 1)",
    "attention": "f = torch.nn.functional\nright = f.scaled_dot_product_attention\n"
    "f.scaled_dot_product_attention = lambda q, k, v: right(q, k, v) * (1.1 if q.shape[2] > 128 else 1)",
}


def test_wrong_at_the_large_size(torch: Path) -> None:
    body = "".join(f"exec({code!r}, {{'torch': torch}})\n" for code in LARGE_WRONG.values())
    result = faulty(torch, " ".join(LARGE_WRONG), body)
    for name in LARGE_WRONG:
        found = result.measurement(name)
        assert found["status"] == "fail" and "gradients against float64: 0." in found["seen"], found


def test_gpu_image_without_gpu(torch: Path) -> None:
    result = run(torch, PREPARE, "--expect", "nvidia", "--devices", "4")
    assert result.verdict == "fail" and {"torch.build", "gpu.visible"} <= result.failed
    assert result.report["expect"] == {"gpu": "nvidia", "architectures": [], "devices": 4}
    measured = {m["id"] for m in result.report["measurements"] if m["status"] != "skip"}
    assert measured <= {"torch.import_time"}
