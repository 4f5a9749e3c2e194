"""The benchmark with a real torch: under each runner, with several ranks, and with faults."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from builder.bench.measurements import MEASUREMENTS
from builder.model import Image
from builder.oci.image import plain_image
from builder.project import Project
from builder.run.base import Mount, RunOptions
from builder.run.rootfs import cached_rootfs
from builder.run.select import runners
from builder.settings import Settings
from builder.store.blobs import Store
from tests.integration.conftest import Builder
from tests.support.ranks import RANKS
from tests.support.smoke import Modified, Result, program

PYTHON = "/opt/conda/bin/python"
#: The default of --timeout: a run that ends before was not ended by it.
LIMIT_S = 240


@pytest.fixture(scope="session")
def cpu_image(torch_cpu: Builder) -> tuple[Image, Settings, Store]:
    settings = Settings.from_environment(cache=torch_cpu.cache)
    project = Project(torch_cpu.root, settings, Store(settings.cache))
    return project.build(project.recipe("cpu")).image, project.settings, project.store


@pytest.fixture(scope="session")
def with_benchmark() -> RunOptions:
    """Options that run the working tree's benchmark, not the image's copy."""
    mounts = [Mount(program().parent, "/smoke")]
    return RunOptions(entrypoint=[], mounts=mounts, timeout_s=400, keep_root=True)


@pytest.fixture(scope="session")
def without_packages(cpu_image: tuple[Image, Settings, Store]) -> Image:
    """The image without the layers of packages and of their compiled modules: an engine loads it quickly.

    Both kinds of layers name their packages. The tests mount the packages with their compiled modules.
    """
    image, _, store = cpu_image
    layers = tuple(layer for layer in image.layers if not layer.packages)
    config = json.loads(image.config)
    config["rootfs"]["diff_ids"] = [layer.diff_id for layer in layers]
    del config["history"]
    image = plain_image(layers, config)
    store.add(image.config)
    return image


Torch = Callable[..., Result]


@pytest.fixture(scope="session")
def torch(request: pytest.FixtureRequest) -> Torch:
    """``torch(code, *options)`` runs the benchmark after ``code``, with the torch here or in the image."""
    if importlib.util.find_spec("torch") and os.environ.get("CI") != "true":
        return lambda code, *options: run_here(Modified(PREPARE + code).command(*options))
    image, settings, store = request.getfixturevalue("cpu_image")
    options_in_userns = request.getfixturevalue("with_benchmark")
    userns = next(r for r in runners(settings, store) if r.name == "userns")

    def inside(code: str, *options: str) -> Result:
        words = Modified(PREPARE + code).command(*options, python=PYTHON, file="/smoke/smoke.py")
        done = userns.run(image, words, options_in_userns)
        return Result(
            subprocess.CompletedProcess(words, done.returncode, done.stdout, done.stderr), valid=False
        )

    return inside


def run_here(words: list[str]) -> Result:
    return Result(subprocess.run(words, capture_output=True, text=True, timeout=400), valid=False)


#: ``only(...)`` selects measurements; ``fault(torch)``, if defined, is called after the import of torch.
PREPARE = """
def only(*names):
    measurements, probes = bench.measurements.MEASUREMENTS, bench.probes.PROBES
    measurements[:] = [m for m in measurements if m.id in names]
    probes[:] = [p for p in probes if p.id in ("torch.import", "machine.steady", "time.budget")]
    probes.insert(1, bench.core.Probe("test.fault", lambda run: fault(run.torch) or "made"))
    bench.core.Run.share = lambda run, nominal_s: min(nominal_s, 0.4)  # quick: figures do not matter here
"""


def faulty(torch: Torch, names: str, body: str, *options: str) -> Result:
    """Runs measurements (separated by blanks) after ``body`` has put a fault into torch."""
    indented = "\n    ".join(body.strip().splitlines())
    return torch(
        f"def fault(torch):\n    {indented}\nonly(*{names.split()!r})\n",
        "--expect",
        "none",
        *options,
    )


# no faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["userns", "podman", "docker", "apptainer"])
def test_two_ranks_under_each_runner(
    name: str,
    cpu_image: tuple[Image, Settings, Store],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks communicate.

    test_everywhere.py loads the whole image into docker and podman. Here the packages are mounted.
    """
    if name == "docker":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("docker_engine").host)
    elif name == "podman":
        for key, value in request.getfixturevalue("podman").env.items():
            monkeypatch.setenv(key, value)
    elif name == "apptainer":
        part = request.getfixturevalue("apptainer")
        for key, value in part.env.items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("PATH", f"{part.path.parent}:{os.environ['PATH']}")
    image, settings, store = cpu_image
    runner = next(r for r in runners(settings, store) if r.name == name)
    # all measurements under one runner; under the others what several ranks need
    options = [] if name == "userns" else ["--budget", "5"]
    command = [PYTHON, "/opt/builder/smoke.py", "--expect", "none", "--ranks", "2", "--json", "-", *options]
    run_options = RunOptions(entrypoint=["/opt/builder/entrypoint"], timeout_s=300)
    if name in ("docker", "podman"):
        packages = cached_rootfs(image, settings, store) / "opt/conda"
        run_options = replace(run_options, mounts=[Mount(packages, "/opt/conda")])
        image = request.getfixturevalue("without_packages")
    done = runner.run(image, command, run_options)
    result = Result(subprocess.CompletedProcess(command, done.returncode, done.stdout, done.stderr))
    assert result.verdict in ("pass", "warn") and not result.failed, result.table
    assert result.report["launch"] == {"ranks": 2, "nodes": 1, "by": "spawn"}
    summed = result.measurement("allreduce.node")
    assert summed["backend"] == "gloo" and summed["members"] == 2 and summed["median_gb_per_s"] > 0
    assert result.report["duration_s"] < LIMIT_S
    if name == "userns":
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


def test_srun_on_two_nodes(slurm: Any) -> None:
    """A real srun starts one or two ranks on each of two nodes; the work needs no torch."""
    for tasks in ("1", "2"):
        folder = slurm.folder / f"meeting{tasks}"
        folder.mkdir()
        words = Modified(RANKS).command()
        command = ["srun", "--nodes", "2", "--ntasks-per-node", tasks, "--chdir", "/", *words]
        done = slurm.run(*command, env={"MEETING": str(folder)})
        result = Result(done, valid=True)
        count = 2 * int(tasks)
        assert result.verdict == "pass" and result.report["launch"] == {
            "ranks": count,
            "nodes": 2,
            "by": "slurm",
        }, done.stderr
        hosts = [r["host"] for r in result.measurement("work")["ranks"]]
        assert hosts == sorted(["node1", "node2"] * int(tasks))
        assert {d["host"] for d in result.report["facts"]["devices"]} == {"node1", "node2"}


# wrong results ----------------------------------------------------------------------------------------------

ONE_TILE = """
right = torch.matmul
def matmul(a, b):
    c = right(a, b)
    if a.shape[0] == {size}:
        c[128:192, 64:128] = 0
    return c
torch.matmul = matmul
"""


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (ONE_TILE.format(size=512), 512),
        ("torch.matmul = lambda a, b: a * float('nan')", 512),
    ],
)
def test_wrong_matrix_product(code: str, size: int, torch: Torch) -> None:
    result = faulty(torch, "matmul.fp32", f"{code}\nbench.measurements.matmul.SIZES['cpu'] = ({size},)")
    assert result.verdict == "fail" and result.failed == {"matmul.fp32"}
    found = result.measurement("matmul.fp32")
    assert (
        f"size {size}" in found["seen"]
        and found["correctness"]["ok"] is False
        and "wrong results" in found["advice"]
    )


WRONG = {
    "memory.copy": "torch.Tensor.copy_ = lambda self, other, **k: self",
    "memory.triad": "right = torch.add\n"
    "torch.add = lambda b, c, alpha, out: right(b, c, alpha=alpha + 1, out=out)",
    "conv.training": "right = torch.relu\ntorch.relu = lambda x: right(x) + 0.1 * (x.dtype == torch.float32)",
    "attention": "f = torch.nn.functional\nright = f.scaled_dot_product_attention\n"
    "f.scaled_dot_product_attention = lambda q, k, v: right(q, k, v) * 1.1",
}


def test_other_wrong_results(torch: Torch) -> None:
    """One run, with a fault in every measurement."""
    body = "".join(f"exec({code!r}, {{'torch': torch}})\n" for code in WRONG.values())
    result = faulty(torch, " ".join(WRONG), body)
    assert result.verdict == "fail"
    for name in WRONG:
        found = result.measurement(name)
        assert found["status"] == "fail" and found["seen"] and found["advice"], found


def test_operations_that_raise(torch: Torch) -> None:
    """A failed measurement does not stop the others."""
    code = "def matmul(a, b): raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n"
    result = faulty(torch, "matmul.fp32 memory.copy", code + "torch.matmul = matmul\n")
    assert result.failed == {"matmul.fp32"}
    assert "too little memory" in result.measurement("matmul.fp32")["advice"]
    assert result.measurement("memory.copy")["status"] == "pass"


# ranks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "failed", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "process", "rank 1 ("),
        ("tensor[7] += 1", "allreduce.node", "are wrong"),
        ("raise RuntimeError('connection reset')", "allreduce.node", "connection reset"),
    ],
)
def test_faulty_rank(code: str, failed: str, said: str, torch: Torch) -> None:
    body = f"""
right = torch.distributed.all_reduce
def all_reduce(tensor, group=None, **more):
    right(tensor, group=group, **more)
    if os.environ["RANK"] == "1" and len(tensor) > 7:
        {code}
torch.distributed.all_reduce = all_reduce
"""
    result = faulty(torch, "allreduce.node memory.copy", body, "--ranks", "2")
    items = [*result.report["probes"], *result.report["measurements"]]
    found = [i for i in items if i["id"] == failed and i["status"] == "fail"]
    assert result.verdict == "fail" and found and said in found[0]["seen"], result.table
    assert result.measurement("memory.copy")["status"] == "pass"
    assert result.report["duration_s"] < LIMIT_S


def test_spent_budget(torch: Torch) -> None:
    result = faulty(torch, "matmul.fp32 transfer.h2d_pinned", "pass", "--budget", "0.001")
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


@pytest.mark.parametrize("name", LARGE_WRONG)
def test_wrong_at_the_large_size(name: str, torch: Torch) -> None:
    found = faulty(torch, name, LARGE_WRONG[name]).measurement(name)
    assert found["status"] == "fail" and re.search("(batch|length) .* are off by 0", found["seen"]), found


def test_gpu_image_without_gpu(torch: Torch) -> None:
    result = torch("", "--expect", "nvidia", "--devices", "4")
    assert result.verdict == "fail" and {"torch.build", "gpu.visible"} <= result.failed
    assert result.report["expect"] == {"gpu": "nvidia", "architectures": [], "devices": 4}
    gpu = result.report["measurements"]
    assert gpu and all(m["status"] == "skip" for m in gpu)
