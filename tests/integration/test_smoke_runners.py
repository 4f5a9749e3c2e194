"""The benchmark with a real torch: under each runner, with several ranks, with faults, with a fake GPU."""

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
from builder.model import OCI_CONFIG, OCI_MANIFEST, Descriptor, Image, canonical_json
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
def cpu_image(cpu: Builder) -> tuple[Image, Settings, Store]:
    settings = Settings.from_environment(cache=cpu.cache)
    project = Project(cpu.root, settings, Store(settings.cache))
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
    data = canonical_json(config)
    described = Descriptor(OCI_CONFIG, store.add(data), len(data))
    manifest = json.loads(image.manifest)
    manifest |= {"config": described.to_json(), "layers": [layer.descriptor.to_json() for layer in layers]}
    text = canonical_json(manifest)
    return Image(layers, data, described, text, Descriptor.of(OCI_MANIFEST, text))


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
    bench.ranks.watchdog.GRACE_S = 2.0
"""


def faulty(torch: Torch, names: str, body: str, *options: str, before: str = "") -> Result:
    """Runs measurements (separated by blanks) after ``body`` has put a fault into torch.

    ``before`` runs in the launcher.
    """
    indented = "\n    ".join(body.strip().splitlines())
    return torch(
        f"{before}\ndef fault(torch):\n    {indented}\nonly(*{names.split()!r})\n",
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
            expected = (
                "matmul.bf16",
                "allreduce.network",
                "imports",
                "command",
                "again.matmul",
                "again.copy",
            )
            assert item["id"] in expected or "budget" in item["seen"], item
        else:
            assert item["correctness"]["ok"] is True and item["repeats"] >= 1
    product = result.measurement("matmul.fp32")
    assert product["median_gflop_per_s"] == max(s["median_gflop_per_s"] for s in product["sizes"])
    assert product["correctness"]["value"] < 1e-5 and product["sizes"][0]["size"] == 512
    training = result.measurement("training")
    assert training["correctness"]["value"] >= 0.9 and training["last_loss"] < training["first_loss"] / 4
    assert [c["cores"] for c in result.measurement("cpu.peak")["cores"]][0] == 1
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
ONE_ENTRY = ONE_TILE.replace("c[128:192, 64:128] = 0", "c[3, 5] += 1")


@pytest.mark.parametrize(
    ("code", "size"),
    [
        (ONE_TILE.format(size=512), 512),
        (ONE_ENTRY.format(size=1024), 1024),
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
    "cpu.peak": "right = torch.mm\n"
    "torch.mm = lambda a, b, out=None: right(a, b, out=out).mul_(1.01 if a.dtype == torch.float32 else 1)",
    "memory.copy": "torch.Tensor.copy_ = lambda self, other, **k: self",
    "memory.triad": "right = torch.add\n"
    "torch.add = lambda b, c, alpha, out: right(b, c, alpha=alpha + 1, out=out)",
    "conv.training": "right = torch.relu\ntorch.relu = lambda x: right(x) + 0.1 * (x.dtype == torch.float32)",
    "attention": "f = torch.nn.functional\nright = f.scaled_dot_product_attention\n"
    "f.scaled_dot_product_attention = lambda q, k, v: right(q, k, v) * 1.1",
    "torch.first_kernel": "start.STARTERS['torch'] = start.STARTERS['torch'].replace('2.0', '2.5')",
    "torch.import_time": "code = start.STARTERS['torch']\n"
    "start.STARTERS['torch'] = code.replace('torch.__version__', '\"9.9\"')",
    "dataloader": "right = bench.measurements.dataloader.Samples.__getitem__\n"
    "bench.measurements.dataloader.Samples.__getitem__ = lambda self, i: (right(self, i)[0] * 1.001, i)",
    "checkpoint.read": "right = torch.load\n"
    "def load(*a, **k):\n    loaded = right(*a, **k)\n"
    "    loaded['layer7'] = loaded['layer7'] + 1\n    return loaded\n"
    "torch.load = load",
}


def test_other_wrong_results(torch: Torch) -> None:
    """One run, with a fault in every measurement."""
    names = "{'torch': torch, 'bench': bench, 'start': bench.measurements.start}"
    body = "".join(f"exec({code!r}, {names})\n" for code in WRONG.values())
    result = faulty(torch, " ".join([*WRONG, "checkpoint.write"]), body)
    assert result.verdict == "fail"
    for name in WRONG:
        found = result.measurement(name)
        assert found["status"] == "fail" and found["seen"] and found["advice"], found
    assert result.measurement("checkpoint.write")["status"] == "pass"
    assert result.measurement("checkpoint.read")["seen"].startswith("1 of 16 tensors")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "f = torch.nn.functional\nright = f.cross_entropy\n"
            "f.cross_entropy = lambda a, b: right(a, b) * float('nan')",
            "nan at step 0",
        ),
        ("torch.optim.Adam.step = lambda self: None", "accuracy 0."),
        ("torch.nn.ReLU.forward = lambda self, x: x * float('inf')", "the loss is nan"),
    ],
)
def test_wrong_training(code: str, said: str, torch: Torch) -> None:
    result = faulty(torch, "training", code)
    assert result.verdict == "fail" and result.failed == {"training"}
    assert said in result.measurement("training")["seen"]


def test_operations_that_raise(torch: Torch) -> None:
    code = "def matmul(a, b): raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n"
    code += "torch.matmul = matmul\n"
    code += "samples = bench.measurements.dataloader.Samples\n"
    code += "samples.__getitem__ = lambda self, i: os.kill(os.getpid(), signal.SIGBUS)\n"
    result = faulty(torch, "matmul.fp32 memory.copy dataloader", code)
    assert (
        result.failed == {"matmul.fp32", "dataloader"}
        and "too little memory" in result.measurement("matmul.fp32")["advice"]
    )
    assert result.measurement("memory.copy")["status"] == "pass"
    found = result.measurement("dataloader")
    assert "worker ended" in found["seen"] and "--shm-size" in found["advice"]


def test_no_room_for_a_checkpoint(torch: Torch) -> None:
    code = "import types\nos.statvfs = lambda path: types.SimpleNamespace(f_frsize=4096, f_bavail=1000)"
    result = faulty(torch, "checkpoint.write checkpoint.read", code)
    found = result.measurement("checkpoint.write")
    assert found["status"] == "warn" and "--scratch" in found["advice"]
    assert result.measurement("checkpoint.read")["status"] == "skip"


# ranks ------------------------------------------------------------------------------------------------------


#: The import of torch may be slow on a busy machine, so the short limit is for communication only.
IMPATIENT = """
evaluate = bench.ranks.watchdog.Watchdog.evaluate
def impatient(watchdog, now):
    watchdog.stall_s = 8 if watchdog.agreed else 100
    evaluate(watchdog, now)
bench.ranks.watchdog.Watchdog.evaluate = impatient
"""


@pytest.mark.parametrize(
    ("code", "failed", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "process", "rank 1 ("),
        ("time.sleep(1000)", "watchdog", "rank 1 ("),
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
    before = IMPATIENT if failed == "watchdog" else ""
    result = faulty(torch, "allreduce.node memory.copy", body, "--ranks", "2", before=before)
    items = [*result.report["probes"], *result.report["measurements"]]
    found = [i for i in items if i["id"] == failed and i["status"] == "fail"]
    assert result.verdict == "fail" and found and said in found[0]["seen"], result.table
    assert result.measurement("memory.copy")["status"] == "pass"
    assert result.report["duration_s"] < LIMIT_S


def test_all_collectives(torch: Torch) -> None:
    """Three ranks, so that the array is not divided evenly, and latencies; every collective is checked."""
    names = "allreduce.node allgather.node reducescatter.node"
    cpus = "bench.measurements.MEASUREMENTS[:] = ["
    cpus += "m._replace(only='') for m in bench.measurements.MEASUREMENTS]"
    result = faulty(torch, names, "pass", "--ranks", "3", before=cpus)
    for name in names.split():
        item = result.measurement(name)
        assert item["status"] == "pass" and item["median_gb_per_s"] > 0, item
        assert (item["members"], item["nodes"], item["gpus"], len(item["ranks"])) == (3, 1, 0, 3)
    assert len(result.measurement("allreduce.node")["latencies"]) == 5

    wrong = "torch.Tensor.sub_ = lambda self, other, alpha=1: self.copy_(self - other * (alpha + 1))"
    result = faulty(torch, names, wrong, "--ranks", "2", before=cpus)
    assert result.failed == set(names.split())  # no rank was left alone


# a slow machine ---------------------------------------------------------------------------------------------

THROTTLE = """
import subprocess
code = "import os, signal, sys, time\\nwhile True:\\n"
code += "    os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(0.08)\\n"
code += "    os.kill(int(sys.argv[1]), signal.SIGCONT); time.sleep(0.04)\\n"
subprocess.Popen([sys.executable, "-S", "-c", code, str(os.getpid())], stderr=subprocess.DEVNULL)
"""


def test_throttled_machine(torch: Torch) -> None:
    """A process that is stopped for two thirds of the time is reported, keeps its budget, and passes."""
    names = "torch.import_time training matmul.fp32 cpu.peak conv.training attention memory.copy memory.triad"
    result = faulty(torch, names, THROTTLE, "--budget", "25")
    assert result.verdict == "warn" and not result.failed, result.table
    found = result.probe("machine.steady")
    assert found["status"] == "warn" and int(found["seen"].split()[0]) < 60, found
    assert result.report["duration_s"] < LIMIT_S


def test_spent_budget(torch: Torch) -> None:
    result = faulty(torch, "matmul.fp32 transfer.h2d_pinned", "pass", "--budget", "0.001")
    assert result.verdict == "error" and result.probe("time.budget")["seen"].endswith(
        "not enough for matmul.fp32"
    )
    assert "budget" in result.measurement("matmul.fp32")["seen"]


def test_small_shared_memory(
    cpu_image: tuple[Image, Settings, Store], with_benchmark: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark runs with a /dev/shm of 1 MiB."""
    monkeypatch.setattr("builder.run.userns._SHM_SIZE", "1m")
    image, settings, store = cpu_image
    userns = next(r for r in runners(settings, store) if r.name == "userns")
    code = "def fault(torch): pass\nonly('dataloader')\n"
    code += "bench.probes.PROBES.insert(2, bench.core.Probe('memory.shm', bench.probes.system.probe_shm))\n"
    words = Modified(PREPARE + code).command("--expect", "none", python=PYTHON, file="/smoke/smoke.py")
    done = userns.run(image, words, with_benchmark)
    result = Result(
        subprocess.CompletedProcess(words, done.returncode, done.stdout, done.stderr), valid=False
    )
    assert result.verdict == "fail" and result.failed == {"dataloader"}, result.table
    assert result.probe("memory.shm")["status"] == "warn" and "1 MiB" in result.probe("memory.shm")["seen"]
    assert "--shm-size" in result.measurement("dataloader")["advice"]


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


# a fake GPU -------------------------------------------------------------------------------------------

#: Replaces torch.cuda by the CPU, for faults of single measurements; test_smoke_gpus.py has whole runs.
FAKE_GPU = """
import types
class Event:
    def __init__(self, enable_timing): pass
    def record(self): self.at = time.perf_counter()
    def synchronize(self): pass
    def elapsed_time(self, end): return 1e3 * (end.at - self.at)
properties = types.SimpleNamespace(
    name="made up", major=8, minor=0, total_memory=1 << 30, multi_processor_count=1)
bench.core.Run.gpus = property(lambda run: 1)
bench.core.Run.build = property(lambda run: "CUDA")
bench.core.Run.device = property(lambda run: "cpu")
made_up = {"empty_cache": lambda: None, "Event": Event, "mem_get_info": lambda index: (256 << 20, 256 << 20)}
made_up.update(get_device_properties=lambda i: properties, set_device=lambda index: None)
made_up.update(synchronize=lambda *device: None)
for name, value in made_up.items():
    setattr(torch.cuda, name, value)
bench.measurements.layers.ATTENTIONS.update(gpu=(1, 2, 128, 64), small=(1, 2, 128, 64))
bench.measurements.timing.WARM_UP_S = bench.measurements.timing.SAMPLING_S = 0.1
"""


def test_attention_without_fused_kernels(torch: Torch) -> None:
    """torch chose the kernel that is several times slower: a warning, with the figure and its backend."""
    body = FAKE_GPU + "torch._fused_sdp_choice = lambda *arguments: 0\n"
    found = faulty(torch, "attention", body, "--expect", "nvidia").measurement("attention")
    assert found["status"] == "warn" and found["backend"] == "math" and found["median_gflop_per_s"] > 0
    assert "flash attention" in found["advice"]


def test_wrong_gpu_results(torch: Torch) -> None:
    body = (
        FAKE_GPU
        + "torch.Tensor.to = lambda self, *a, **k: self\nright = torch.mm\n"
        + "torch.mm = lambda a, b: right(a, b) * 1.5\n"
    )
    code = "\n    ".join(("def fault(torch):\n" + body).splitlines())
    code += "\nonly()\nprobe = bench.core.Probe('gpu.compute', bench.probes.gpu.probe_compute)\n"
    code += "bench.probes.PROBES.append(probe)\n"
    result = torch(code, "--expect", "nvidia")
    assert "GPU 0: a matrix product is off" in result.probe("gpu.compute")["seen"]


def test_gpu_image_without_gpu(torch: Torch) -> None:
    result = torch("", "--expect", "nvidia", "--devices", "4")
    assert result.verdict == "fail" and {"torch.build", "gpu.visible"} <= result.failed
    assert result.report["expect"] == {"gpu": "nvidia", "architectures": [], "devices": 4}
    gpu = [m for m in result.report["measurements"] if m["id"] != "dataloader"]
    assert gpu and all(m["status"] == "skip" for m in gpu)
