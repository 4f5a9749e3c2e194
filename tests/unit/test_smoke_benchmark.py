"""The benchmark itself: with this machine's torch, with faults made on purpose, and with what a GPU machine's torch would say."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import jsonschema
import pytest

SMOKE = Path(__file__).parents[2] / "builder" / "smoke"
BENCHMARK = SMOKE / "benchmark.py"
SCHEMA = json.loads((SMOKE / "report.schema.json").read_text())


def load() -> ModuleType:
    """The benchmark as a module of its own, so that registries can be changed."""
    spec = importlib.util.spec_from_file_location("smoke_benchmark", BENCHMARK)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bench() -> ModuleType:
    return load()


@pytest.fixture
def torch_here(part_missing: Callable[[str], NoReturn]) -> None:
    """Tests that calculate need a real torch."""
    if importlib.util.find_spec("torch") is None:
        part_missing("torch is not installed (pip install builder-images[torch])")


class Result:
    """A finished run of the benchmark: its exit code, its report (checked against the schema) and its table."""

    def __init__(self, done: subprocess.CompletedProcess[str], *, valid: bool = True) -> None:
        self.code, self.table = done.returncode, done.stderr
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        self.report = json.loads(done.stdout)
        assert not valid or jsonschema.validate(self.report, SCHEMA, jsonschema.Draft202012Validator) is None
        self.verdict = self.report["verdict"]
        assert self.code == {"pass": 0, "warn": 0, "fail": 1, "error": 2}[self.verdict]

    def probe(self, name: str) -> Any:
        return next(p for p in self.report["probes"] if p["id"] == name)

    def measurement(self, name: str) -> Any:
        return next(m for m in self.report["measurements"] if m["id"] == name)

    @property
    def failed(self) -> set[str]:
        items = [*self.report["probes"], *self.report["measurements"]]
        return {i["id"] for i in items if i["status"] == "fail"}


def run(
    *options: str, python: Sequence[str] = (), env: dict[str, str] | None = None, start: Callable[[], None] | None = None
) -> Result:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "PYTHONHOME", "SSL_CERT", "COV_"))}
    command = [sys.executable, *python, str(BENCHMARK), "--json", "-", *options]
    return Result(
        subprocess.run(command, capture_output=True, text=True, env={**clean, **(env or {})}, preexec_fn=start, timeout=300)
    )


def with_torch(folder: Path, source: str) -> dict[str, str]:
    """An environment in which ``import torch`` runs this source."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(folder)}


PATCHED = """
import sys, time
sys.path.insert(0, {folder!r})
import benchmark
def patch(run):
    torch = run.torch
    {code}
    return "patched"
benchmark.PROBES[:] = [p for p in benchmark.PROBES if p[0] == "torch.import"] + [("test.patch", patch)]
benchmark.MEASUREMENTS[:] = [m for m in benchmark.MEASUREMENTS if m[0] in {measurements!r}]
sys.exit(benchmark.main(["--expect", "none", "--json", "-", *sys.argv[1:]]))
"""


def run_patched(code: str, *measurements: str, options: Sequence[str] = ()) -> Result:
    """Some measurements with the real torch, after ``code`` has put a fault into it."""
    indented = code.strip().replace("\n", "\n    ")
    source = PATCHED.format(folder=str(SMOKE), code=indented, measurements=measurements)
    return Result(subprocess.run([sys.executable, "-c", source, *options], capture_output=True, text=True, timeout=300))


# all is well ----------------------------------------------------------------------------------------------------------


def test_it_passes_with_a_real_torch_in_its_time_budget(torch_here: None, tmp_path: Path) -> None:
    started = time.monotonic()
    result = run("--expect", "none")
    assert result.verdict in ("pass", "warn"), result.table
    assert not result.failed
    assert result.probe("torch.import")["status"] == "pass"
    product = result.measurement("matmul.fp32")
    assert product["median_gflop_per_s"] > 0.1 and product["repeats"] >= 3 and product["correctness"]["value"] < 1e-5
    assert [s["size"] for s in product["sizes"]] == [512, 1024, 2048]
    assert product["median_gflop_per_s"] == max(s["median_gflop_per_s"] for s in product["sizes"])
    training = result.measurement("training")
    assert training["correctness"]["value"] >= 0.97 and training["last_loss"] < training["first_loss"] / 4
    assert result.measurement("memory.copy")["median_gb_per_s"] > 0.1
    assert result.measurement("torch.import_time")["median_s"] > 0.05
    for name in ("tf32", "fp16", "bf16"):
        assert result.measurement(f"matmul.{name}")["status"] == "skip"
    facts = result.report["facts"]
    assert facts["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert facts["torch"]["build"] in ("CPU", "CUDA", "HIP")
    assert "training" in result.table and result.verdict.upper() in result.table
    # Alone on two cores it takes about 10 s; other tests may run beside it.
    assert time.monotonic() - started < 90


def test_the_report_can_go_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = subprocess.run([sys.executable, "-S", BENCHMARK, "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "FAIL" in done.stdout
    assert json.loads(path.read_text())["verdict"] == "fail"


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-S", BENCHMARK, "--json", f"{tmp_path}/no/r.json"], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot write the report" in done.stderr and "Traceback" not in done.stderr


# torch is not right ---------------------------------------------------------------------------------------------------


def test_torch_missing() -> None:
    result = run("--expect", "none", python=["-S"])  # -S: no site-packages
    assert result.verdict == "fail"
    assert result.failed == {"torch.import"}
    assert "no torch" in result.probe("torch.import")["seen"] and result.probe("torch.import")["advice"]
    assert all(m["status"] == "skip" for m in result.report["measurements"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file: No such file or directory')", "libcudart.so.12"),
        ("import a_package_that_is_not_there", "a_package_that_is_not_there"),
        ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
        ("", "AttributeError"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_torch_does_not_import(source: str, said: str, tmp_path: Path) -> None:
    result = run("--expect", "nvidia", env=with_torch(tmp_path, source))
    assert result.verdict == "fail" and "torch.import" in result.failed
    assert said in result.probe("torch.import")["seen"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV in torch.import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL in torch.import"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL in torch.import"),
        ("import os; os._exit(0)", "ended by itself in torch.import"),
    ],
)
def test_torch_ends_the_process(source: str, said: str, tmp_path: Path) -> None:
    result = run("--expect", "none", env=with_torch(tmp_path, source))
    assert result.verdict == "fail" and result.failed == {"process"}
    assert said in result.probe("process")["seen"] and result.probe("process")["advice"]


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(1000)",
        # holds the interpreter's lock, as a hung driver may: no thread of the same process would ever run again
        "import ctypes; ctypes.PyDLL(None).sleep(1000)",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(1000)",
    ],
)
def test_a_hang_is_ended_and_named(source: str, tmp_path: Path) -> None:
    started = time.monotonic()
    result = run("--expect", "none", "--timeout", "1.5", env=with_torch(tmp_path, source))
    assert time.monotonic() - started < 15
    assert result.verdict == "fail" and result.failed == {"watchdog"}
    assert "torch.import" in result.probe("watchdog")["seen"] and "1.5 s" in result.probe("watchdog")["seen"]


def test_what_libraries_print_does_not_get_into_the_report(tmp_path: Path) -> None:
    source = "import os; print('hello'); os.write(1, b'from C'); raise ImportError('x')"
    result = run(env=with_torch(tmp_path, source))
    assert result.failed == {"torch.import"} and "hello" in result.table


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_still_reports(number: int, tmp_path: Path) -> None:
    env = {**os.environ, **with_torch(tmp_path, f"open({str(tmp_path / 'here')!r}, 'w'); import time; time.sleep(1000)")}
    command = [sys.executable, str(BENCHMARK), "--json", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    end = time.monotonic() + 20
    while not (tmp_path / "here").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    result = Result(subprocess.CompletedProcess(command, process.returncode, out, err))
    assert result.verdict == "error" and signal.Signals(number).name in result.probe("process")["seen"]


def test_the_child_dies_with_the_parent(tmp_path: Path) -> None:
    here = tmp_path / "pid"
    env = {
        **os.environ,
        **with_torch(tmp_path, f"import os, time; open({str(here)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"),
    }
    process = subprocess.Popen([sys.executable, str(BENCHMARK)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    end = time.monotonic() + 20
    while not (here.exists() and here.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    child = int(here.read_text())
    process.kill()
    process.wait()
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


# wrong results --------------------------------------------------------------------------------------------------------

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
    [(ONE_TILE.format(size=512), 512), (ONE_TILE.format(size=2048), 2048), (ONE_ENTRY.format(size=1024), 1024),
     ("torch.matmul = lambda a, b: a * float('nan')", 512)],
)  # fmt: skip
def test_a_wrong_matrix_product_is_found(code: str, size: int, torch_here: None) -> None:
    result = run_patched(code, "matmul.fp32")
    assert result.verdict == "fail" and result.failed == {"matmul.fp32"}
    found = result.measurement("matmul.fp32")
    assert f"size {size}" in found["seen"] and found["correctness"]["ok"] is False and "wrong results" in found["advice"]


def test_a_copy_that_does_not_copy_is_found(torch_here: None) -> None:
    result = run_patched("torch.Tensor.copy_ = lambda self, other: self", "memory.copy")
    assert result.failed == {"memory.copy"} and "words differ" in result.measurement("memory.copy")["seen"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "right = torch.nn.functional.cross_entropy\n"
            "torch.nn.functional.cross_entropy = lambda a, b: right(a, b) * float('nan')",
            "nan at step 0",
        ),
        ("torch.optim.Adam.step = lambda self: None", "accuracy 0."),
        ("torch.nn.ReLU.forward = lambda self, x: x * float('inf')", "the loss is nan"),
    ],
)
def test_a_training_that_goes_wrong_is_found(code: str, said: str, torch_here: None) -> None:
    result = run_patched(code, "training")
    assert result.verdict == "fail" and result.failed == {"training"}
    assert said in result.measurement("training")["seen"]


def test_an_operation_that_raises_is_a_finding(torch_here: None) -> None:
    code = "def matmul(a, b): raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\ntorch.matmul = matmul"
    result = run_patched(code, "matmul.fp32", "memory.copy")
    assert result.failed == {"matmul.fp32"} and "memory" in result.measurement("matmul.fp32")["advice"]
    assert result.measurement("memory.copy")["status"] == "pass"


def test_a_hang_in_a_measurement_is_named() -> None:
    source = f"""
import sys, time
sys.path.insert(0, {str(SMOKE)!r})
import benchmark
benchmark.PROBES[:] = []
benchmark.MEASUREMENTS[:] = [("first", lambda run: {{"figure": 1}}), ("matmul.fp32", lambda run: time.sleep(1000))]
sys.exit(benchmark.main(["--json", "-", "--timeout", "2"]))
"""
    result = Result(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60), valid=False)
    assert result.failed == {"watchdog"} and "matmul.fp32" in result.probe("watchdog")["seen"]
    assert result.measurement("first")["figure"] == 1  # what was found before is kept


def test_nothing_measured_is_no_pass(bench: ModuleType) -> None:
    report = {"probes": [{"status": "pass"}], "measurements": [{"status": "skip"}]}
    assert bench.verdict(report) == "error"
    assert bench.verdict({**report, "measurements": [{"status": "pass"}]}) == "pass"
    assert bench.verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "pass"}]}) == "warn"
    assert bench.verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "fail"}]}) == "fail"


def test_a_measurement_whose_check_says_no_fails(bench: ModuleType) -> None:
    item = bench.found("x", lambda: {"median_s": 1.0, **bench.checked("version", "2", "1", False)})
    assert item["status"] == "fail" and "version" in item["seen"]


# GPU machines, by what their torch would say --------------------------------------------------------------------------


def fake_torch(
    build: str, devices: int = 1, arch: str = "sm_80", known: Sequence[str] = ("sm_80",), runtime: str = "12.4"
) -> Any:
    """The part of torch that the probes ask, on a machine with GPUs."""
    capability = int("".join(c for c in arch if c.isdigit()) or 0) if arch.startswith("sm_") else 90
    properties = SimpleNamespace(
        name="GPU", major=capability // 10, minor=capability % 10, gcnArchName=f"{arch}:sramecc+:xnack-",
        total_memory=80 << 30, multi_processor_count=108,
    )  # fmt: skip

    def init() -> None:
        if not devices:
            raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU.\nmore")

    cuda = SimpleNamespace(
        is_available=lambda: devices > 0, device_count=lambda: devices, get_arch_list=lambda: list(known) if devices else [],
        get_device_properties=lambda i: properties, get_device_name=lambda i: properties.name, init=init,
    )  # fmt: skip
    version = SimpleNamespace(cuda=runtime if build == "CUDA" else None, hip="6.2" if build == "HIP" else None)
    return SimpleNamespace(
        cuda=cuda, version=version, __version__="2.9", __file__="/opt/conda/lib/torch/__init__.py", get_num_threads=lambda: 8,
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: " ".join(known)),
    )  # fmt: skip


def ask(bench: ModuleType, name: str, torch: Any = None, **options: Any) -> Any:
    """What one probe says."""
    values = {"expect": "auto", "architectures": [], "devices": None, "timeout": 10, "json": None, **options}
    probing = bench.Run(argparse.Namespace(**values))
    probing.torch = torch
    function = dict(bench.PROBES)[name]
    return SimpleNamespace(**bench.found(name, lambda: {"seen": function(probing)}))


@pytest.mark.parametrize(
    ("build", "expect", "status"),
    [("CPU", "nvidia", "fail"), ("CPU", "amd", "fail"), ("HIP", "nvidia", "fail"),
     ("CUDA", "amd", "fail"), ("CUDA", "nvidia", "pass"),
     ("HIP", "amd", "pass"), ("CPU", "none", "pass"), ("CUDA", "none", "warn"), ("CUDA", "auto", "pass")],
)  # fmt: skip
def test_the_build_must_be_that_of_the_recipe(build: str, expect: str, status: str, bench: ModuleType) -> None:
    found = ask(bench, "torch.build", fake_torch(build), expect=expect)
    assert found.status == status and build in found.seen
    assert bool(found.advice) == (status != "pass")


def test_a_gpu_image_without_a_gpu(bench: ModuleType) -> None:
    found = ask(bench, "gpu.visible", fake_torch("CUDA", devices=0), expect="nvidia")
    assert found.status == "fail" and "Found no NVIDIA driver" in found.seen and "--gpus all" in found.advice
    assert ask(bench, "gpu.visible", fake_torch("CPU", devices=0), expect="amd").status == "fail"
    assert ask(bench, "gpu.visible", fake_torch("CUDA", devices=0)).status == "skip"  # nobody expects one
    assert ask(bench, "gpu.visible", fake_torch("CUDA", devices=0), devices=1).status == "fail"


def test_a_gpu_image_on_this_machine_without_one(torch_here: None) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = run("--expect", "nvidia", "--devices", "4")
    assert result.verdict == "fail" and {"gpu.visible"} <= result.failed
    assert result.report["expect"] == {"gpu": "nvidia", "architectures": [], "devices": 4}
    assert all(m["status"] == "skip" for m in result.report["measurements"] if m["id"] != "torch.import_time")


def test_the_number_of_gpus(bench: ModuleType) -> None:
    assert ask(bench, "gpu.visible", fake_torch("CUDA", devices=4), expect="nvidia", devices=4).status == "pass"
    found = ask(bench, "gpu.visible", fake_torch("CUDA", devices=3), expect="nvidia", devices=4)
    assert found.status == "fail" and found.seen.startswith("3: ") and "4 were expected" in found.advice


@pytest.mark.parametrize(
    ("build", "arch", "known", "status"),
    [
        ("CUDA", "sm_80", ["sm_70", "sm_80"], "pass"),
        ("CUDA", "sm_86", ["sm_70", "sm_80"], "pass"),  # code for 8.0 runs on 8.6
        ("CUDA", "sm_80", ["sm_70", "sm_86"], "fail"),  # and not the other way round
        ("CUDA", "sm_90", ["sm_80", "compute_80"], "warn"),
        ("CUDA", "sm_90", ["sm_90a"], "fail"),  # 9.0a is for its own kind only
        ("CUDA", "sm_120", ["sm_90", "sm_100"], "fail"),
        ("CUDA", "sm_60", ["sm_80", "compute_80"], "fail"),
        ("HIP", "gfx90a", ["gfx908", "gfx90a"], "pass"),
        ("HIP", "gfx90a", ["gfx90a:sramecc+:xnack-"], "pass"),
        ("HIP", "gfx908", ["gfx90a"], "fail"),
    ],
)
def test_torch_must_have_code_for_the_gpu(build: str, arch: str, known: list[str], status: str, bench: ModuleType) -> None:
    torch = fake_torch(build, arch=arch, known=known)
    assert ask(bench, "gpu.architecture", torch).status == status
    without_gpu = fake_torch(build, devices=0, arch=arch, known=known)  # the recipe's can be checked where no GPU is
    assert ask(bench, "torch.architectures", without_gpu, architectures=[arch]).status == status


def test_a_result_that_a_gpu_gets_wrong(bench: ModuleType, torch_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    broken = SimpleNamespace(
        cuda=fake_torch("CUDA", devices=2).cuda, version=fake_torch("CUDA").version, randn=torch.randn, Generator=torch.Generator,
        mm=lambda a, b: torch.mm(a, b) * 1.5,
    )  # fmt: skip
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    found = ask(bench, "gpu.compute", broken)
    assert found.status == "fail" and "GPU 0" in found.seen
    broken.mm = torch.mm
    assert ask(bench, "gpu.compute", broken).seen == "2 right"


@pytest.mark.parametrize(
    ("driver", "runtime", "status"),
    [(12040, "12.4", "pass"), (12080, "12.4", "pass"), (12020, "12.4", "warn"), (11080, "12.4", "fail")],
)
def test_the_driver_must_be_new_enough(
    driver: int, runtime: str, status: str, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def cuDriverGetVersion(self, number: Any) -> int:
            number._obj.value = driver
            return 0

    monkeypatch.setattr(bench.ctypes, "CDLL", lambda name: Library())
    assert ask(bench, "gpu.driver", fake_torch("CUDA", runtime=runtime), expect="nvidia").status == status


def test_no_driver_library(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(bench.ctypes, "CDLL", refuse)
    found = ask(bench, "gpu.driver", fake_torch("CUDA"), expect="nvidia")
    assert found.status == "fail" and "libcuda" in found.seen and "--nv" in found.advice
    if not Path("/dev/kfd").exists():
        assert ask(bench, "gpu.driver", fake_torch("HIP"), expect="amd").status == "fail"


@pytest.mark.parametrize(
    ("build", "arch", "none"),
    [("CUDA", "sm_80", []), ("CUDA", "sm_70", ["bf16", "tf32"]), ("CUDA", "sm_60", ["bf16", "tf32"]), ("HIP", "gfx90a", ["tf32"]),
     ("HIP", "gfx906", ["bf16", "tf32"]), ("HIP", "gfx942", [])],
)  # fmt: skip
def test_precisions_are_measured_where_the_hardware_has_them(build: str, arch: str, none: list[str], bench: ModuleType) -> None:
    probing = bench.Run(argparse.Namespace(expect="auto"))
    probing.torch = fake_torch(build, arch=arch)
    assert [p for p in sorted(bench.PRECISIONS) if bench.without(probing, "cuda:0", p)] == none


# the machine is not right ---------------------------------------------------------------------------------------------


def test_one_core_for_everything(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert ask(bench, "cpu.affinity", expect="nvidia").status == "fail"
    assert ask(bench, "cpu.affinity", expect="none").status == "warn"
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert ask(bench, "cpu.affinity", expect="nvidia").status == "pass"


def test_the_affinity_of_this_process_is_what_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    result = run("--expect", "none", python=["-S"], start=lambda: os.sched_setaffinity(0, {core}))
    assert result.probe("cpu.affinity")["seen"].startswith("1 of ")
    assert result.probe("cpu.affinity")["status"] == ("warn" if (os.cpu_count() or 1) > 1 else "pass")


def test_too_little_shared_memory(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=(64 << 20) // 4096))
    found = ask(bench, "memory.shm")
    assert found.status == "warn" and "64 MiB" in found.seen and "--shm-size" in found.advice

    def gone(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", gone)
    assert ask(bench, "memory.shm").status == "warn"


def test_packages_of_the_home_leak_in(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "/home/somebody/.local/lib/python3.11/site-packages"
    monkeypatch.setattr(bench.site, "getusersitepackages", lambda: own)
    assert ask(bench, "python.usersite").status == "pass"
    monkeypatch.setattr(sys, "path", [*sys.path, own])
    assert ask(bench, "python.usersite", fake_torch("CPU")).status == "warn"
    torch = fake_torch("CPU")
    torch.__file__ = f"{own}/torch/__init__.py"
    assert ask(bench, "python.usersite", torch).status == "fail"


def test_pythonpath_and_certificates(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    result = run(python=["-S"], env={"PYTHONPATH": str(tmp_path), "SSL_CERT_FILE": str(tmp_path / "gone.pem")})
    assert result.probe("python.path")["status"] == "warn" and str(tmp_path) in result.probe("python.path")["seen"]
    assert result.probe("system.certificates")["status"] == "warn" and "gone.pem" in result.probe("system.certificates")["seen"]
    result = run(python=["-S"], env={"SSL_CERT_FILE": str(tmp_path / "empty.pem")})
    assert result.probe("system.certificates")["status"] == "warn" and "empty.pem" in result.probe("system.certificates")["seen"]


def test_no_room_for_temporary_files(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(bench.tempfile, "gettempdir", nowhere)
    assert ask(bench, "system.tmp").status == "fail"


def test_no_secret_gets_into_the_facts() -> None:
    result = run(python=["-S"], env={"REGISTRY_PASSWORD": "s3cret", "WANDB_API_KEY": "s3cret", "OMP_NUM_THREADS": "3"})
    assert "s3cret" not in json.dumps(result.report)
    assert result.report["facts"]["variables"]["OMP_NUM_THREADS"] == "3"


def test_a_probe_that_cannot_be_made_is_a_finding(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ValueError("odd")

    monkeypatch.setattr(bench.site, "getusersitepackages", broken)
    assert ask(bench, "python.usersite").status == "warn"
    torch = fake_torch("CUDA")
    torch.cuda.get_device_properties = lambda i: 1 / 0
    assert ask(bench, "gpu.architecture", torch).status == "fail"


# the file -------------------------------------------------------------------------------------------------------------


def test_it_needs_nothing_but_python_3_8_and_torch() -> None:
    tree = ast.parse(BENCHMARK.read_text(), feature_version=(3, 8))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {n.partition(".")[0] for n in names} <= sys.stdlib_module_names | {"torch"}


def test_every_probe_and_measurement_is_documented(bench: ModuleType) -> None:
    text = (SMOKE.parents[1] / "docs" / "smoke.md").read_text()
    for name, _ in (*bench.PROBES, *bench.MEASUREMENTS):
        assert f"`{name}`" in text, name
    assert len({n for n, _ in bench.PROBES}) == len(bench.PROBES) and len({n for n, _ in bench.MEASUREMENTS}) == len(
        bench.MEASUREMENTS
    )


def test_the_schema_refuses_what_is_not_a_report() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = {
        "schema_version": 2, "verdict": "pass", "started": "2026-01-01T00:00:00Z", "duration_s": 1.0,
        "expect": {"gpu": "none", "architectures": [], "devices": None}, "facts": {}, "probes": [],
        "measurements": [{"id": "a.b", "status": "pass", "seen": "", "advice": "", "median_s": 1.0, "mad_s": 0.1,
                          "samples_s": [0.9, 1.0, 1.1], "repeats": 3,
                          "correctness": {"check": "c", "value": 1, "limit": 1, "ok": True}}],
    }  # fmt: skip
    check = jsonschema.Draft202012Validator(SCHEMA)
    check.validate(good)
    for key in good:
        assert not check.is_valid({k: v for k, v in good.items() if k != key})
    for key in ("median_s", "mad_s", "samples_s", "repeats", "correctness", "advice"):
        measurement = {k: v for k, v in good["measurements"][0].items() if k != key}  # type: ignore[index]
        assert not check.is_valid({**good, "measurements": [measurement]})
    for key, value in (("schema_version", 1), ("verdict", "fine"), ("started", "today"), ("more", 1), ("duration_s", -1)):
        assert not check.is_valid({**good, key: value})
