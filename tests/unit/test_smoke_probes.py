"""Every probe in its failing state, by injecting what torch, the environment or the system would say."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.smoke import ask, fake_torch, load, run, with_torch


@pytest.fixture
def bench() -> ModuleType:
    return load()


@pytest.fixture
def root(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``root("/sys/x", "text")`` writes a file of the system that the benchmark reads."""

    def write(path: str, text: str = "") -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    monkeypatch.setattr(bench, "ROOT", str(tmp_path))
    return write


# GPU machines, by what their torch would say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "expect", "status"),
    [
        ("CPU", "nvidia", "fail"),
        ("CPU", "amd", "fail"),
        ("HIP", "nvidia", "fail"),
        ("CUDA", "amd", "fail"),
        ("CUDA", "nvidia", "pass"),
        ("HIP", "amd", "pass"),
        ("CPU", "none", "pass"),
        ("CUDA", "none", "warn"),
        ("CUDA", "auto", "pass"),
    ],
)
def test_the_build_must_be_that_of_the_recipe(
    build: str, expect: str, status: str, bench: ModuleType
) -> None:
    found = ask(bench, "torch.build", fake_torch(build), expect=expect)
    assert found.status == status and build in found.seen
    assert bool(found.advice) == (status != "pass")


def test_a_gpu_image_without_a_gpu(bench: ModuleType) -> None:
    found = ask(bench, "gpu.visible", fake_torch("CUDA", devices=0), expect="nvidia")
    assert found.status == "fail" and "Found no NVIDIA driver" in found.seen and "--gpus all" in found.advice
    assert ask(bench, "gpu.visible", fake_torch("CPU", devices=0), expect="amd").status == "fail"
    assert ask(bench, "gpu.visible", fake_torch("CUDA", devices=0)).status == "skip"  # nobody expects one
    assert ask(bench, "gpu.visible", fake_torch("CUDA", devices=0), devices=1).status == "fail"


def test_the_number_of_gpus(bench: ModuleType) -> None:
    assert (
        ask(bench, "gpu.visible", fake_torch("CUDA", devices=4), expect="nvidia", devices=4).status == "pass"
    )
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
def test_torch_must_have_code_for_the_gpu(
    build: str, arch: str, known: list[str], status: str, bench: ModuleType
) -> None:
    torch = fake_torch(build, arch=arch, known=known)
    assert ask(bench, "gpu.architecture", torch).status == status
    without_gpu = fake_torch(
        build, devices=0, arch=arch, known=known
    )  # the recipe's can be checked where no GPU is
    assert ask(bench, "torch.architectures", without_gpu, architectures=[arch]).status == status


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
    [
        ("CUDA", "sm_80", []),
        ("CUDA", "sm_70", ["bf16", "tf32"]),
        ("CUDA", "sm_60", ["bf16", "tf32"]),
        ("HIP", "gfx90a", ["tf32"]),
        ("HIP", "gfx906", ["bf16", "tf32"]),
        ("HIP", "gfx942", []),
    ],
)
def test_precisions_are_measured_where_the_hardware_has_them(
    build: str, arch: str, none: list[str], bench: ModuleType
) -> None:
    probing = bench.Run(bench.parse([]))
    probing.torch = fake_torch(build, arch=arch)
    assert [p for p in sorted(bench.PRECISIONS) if bench.without(probing, p)] == none


# the machine is not right ---------------------------------------------------------------------------------------------


def test_one_core_for_everything(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert ask(bench, "cpu.affinity", expect="nvidia").status == "fail"
    assert ask(bench, "cpu.affinity", expect="none").status == "fail"
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert ask(bench, "cpu.affinity", expect="nvidia").status == "pass"


def test_the_affinity_of_this_process_is_what_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    result = run("--expect", "none", python=["-S"], start=lambda: os.sched_setaffinity(0, {core}))
    assert result.probe("cpu.affinity")["seen"].startswith("1 of ")
    assert result.probe("cpu.affinity")["status"] == ("fail" if (os.cpu_count() or 1) > 1 else "pass")


def test_too_little_shared_memory(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=(64 << 20) // 4096)
    )
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
    result = run(
        python=["-S"], env={"PYTHONPATH": str(tmp_path), "SSL_CERT_FILE": str(tmp_path / "gone.pem")}
    )
    assert (
        result.probe("python.path")["status"] == "warn"
        and str(tmp_path) in result.probe("python.path")["seen"]
    )
    assert (
        result.probe("system.certificates")["status"] == "warn"
        and "gone.pem" in result.probe("system.certificates")["seen"]
    )
    result = run(python=["-S"], env={"SSL_CERT_FILE": str(tmp_path / "empty.pem")})
    assert (
        result.probe("system.certificates")["status"] == "warn"
        and "empty.pem" in result.probe("system.certificates")["seen"]
    )


def test_no_room_for_temporary_files(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(bench.tempfile, "gettempdir", nowhere)
    assert ask(bench, "system.tmp").status == "fail"


def test_a_temporary_folder_that_is_noexec_or_full(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.tempfile, "gettempdir", lambda: "/scratch")
    size = SimpleNamespace(f_frsize=4096, f_bavail=1 << 20, f_flag=os.ST_NOEXEC | os.ST_NOSUID)
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    found = ask(bench, "system.tmp")
    assert found.status == "warn" and "/scratch is mounted noexec" in found.seen and "TMPDIR" in found.advice
    size.f_flag = os.ST_NOSUID
    assert ask(bench, "system.tmp").status == "pass"
    size.f_bavail = 1000
    found = ask(bench, "system.tmp")
    assert found.status == "warn" and "4 MiB free" in found.seen


def test_no_secret_gets_into_the_facts() -> None:
    result = run(
        python=["-S"], env={"REGISTRY_PASSWORD": "s3cret", "WANDB_API_KEY": "s3cret", "OMP_NUM_THREADS": "3"}
    )
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


# libraries and devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("libcuda.so.1: cannot open shared object file", "--nv"),
        ("libamdhip64.so.6: cannot open shared object file", "--rocm"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by libtorch.so)", "newer base image"),
        ("libmkl.so: undefined symbol: x", "lock"),
    ],
)
def test_the_library_that_torch_misses_says_what_to_do(said: str, advice: str, tmp_path: Path) -> None:
    result = run(env=with_torch(tmp_path, f"raise OSError({said!r})"))
    found = result.probe("torch.import")
    assert found["status"] == "fail" and said in found["seen"] and advice in found["advice"]


def test_amd_gpus_need_their_device_file(bench: ModuleType, root: Any) -> None:
    found = ask(bench, "gpu.driver", fake_torch("HIP"), expect="amd")
    assert found.status == "fail" and found.seen == "no /dev/kfd" and "--rocm" in found.advice
    root("/dev/kfd")
    root("/sys/module/amdgpu/version", "6.3.6")
    assert ask(bench, "gpu.driver", fake_torch("HIP"), expect="amd").seen == "amdgpu 6.3.6, torch of HIP 6.2"


def test_the_hosts_driver_needs_a_newer_glibc(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(
            "/lib/libc.so.6: version `GLIBC_2.38' not found (required by /.singularity.d/libs/libcuda.so.1)"
        )

    monkeypatch.setattr(bench.ctypes, "CDLL", refuse)
    found = ask(bench, "gpu.driver", fake_torch("CUDA"), expect="nvidia")
    assert found.status == "fail" and "GLIBC_2.38" in found.seen and "newer base image" in found.advice


def test_no_cudnn(bench: ModuleType) -> None:
    torch = fake_torch("CUDA")
    assert ask(bench, "gpu.dnn", torch, expect="nvidia").seen == "cuDNN 90100"
    torch.backends.cudnn.enabled = False
    assert ask(bench, "gpu.dnn", torch, expect="nvidia").status == "warn"
    torch.backends.cudnn.is_available = lambda: False
    found = ask(bench, "gpu.dnn", torch, expect="nvidia")
    assert found.status == "fail" and "no cuDNN" in found.seen
    assert "no MIOpen" in ask(bench, "gpu.dnn", with_cudnn_gone(fake_torch("HIP")), expect="amd").seen
    assert ask(bench, "gpu.dnn", fake_torch("CPU"), expect="none").status == "skip"


def with_cudnn_gone(torch: Any) -> Any:
    torch.backends.cudnn.is_available = lambda: False
    return torch


def test_no_nccl(bench: ModuleType) -> None:
    torch = fake_torch("CUDA")
    assert ask(bench, "nccl.version", torch, expect="nvidia").seen == "NCCL 2.21.5"
    torch.distributed.is_nccl_available = lambda: False
    assert ask(bench, "nccl.version", torch, expect="nvidia").status == "warn"  # one GPU gets on without
    torch.cuda.device_count = lambda: 4
    found = ask(bench, "nccl.version", torch, expect="nvidia")
    assert found.status == "fail" and "several GPUs" in found.advice


class Nvml:
    """libnvidia-ml.so.1, of one GPU."""

    def __init__(self, **values: Any) -> None:
        self.values = {
            "ecc": (1, 1),
            "errors": 0,
            "rows": (0, 0, 0, 0),
            "persistence": 1,
            "reasons": 0,
            "clock": 1400,
            **values,
        }
        self.asked = b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, handle: Any) -> int:
        self.asked = address
        return 0

    def _give(self, key: str, *places: Any) -> int:
        value = self.values[key]
        if value is None:
            return 3  # NVML_ERROR_NOT_SUPPORTED
        for place, number in zip(places, value if isinstance(value, tuple) else (value,), strict=True):
            place._obj.value = number
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        return self._give("clock", out)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int, out: Any) -> int:
        out._obj.value = 1410
        return 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, out: Any) -> int:
        out._obj.value = 64
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> int:
        assert isinstance(out._obj, ctypes.c_ulonglong)
        return self._give("reasons", out)

    def nvmlDeviceGetEccMode(self, handle: Any, now: Any, pending: Any) -> int:
        return self._give("ecc", now, pending)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int, out: Any) -> int:
        assert kind == 1
        return self._give("errors", out)

    def nvmlDeviceGetRemappedRows(self, handle: Any, *out: Any) -> int:
        return self._give("rows", *out)

    def nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> int:
        return self._give("persistence", out)


@pytest.mark.parametrize(
    ("probe", "values", "status", "said"),
    [
        ("gpu.ecc", {}, "pass", "no uncorrected"),
        ("gpu.ecc", {"errors": 3}, "fail", "GPU 0: 3 memory errors"),
        ("gpu.ecc", {"rows": (0, 1, 0, 1)}, "fail", "could not be replaced"),
        ("gpu.ecc", {"rows": (0, 1, 1, 0)}, "warn", "wait to be replaced"),
        ("gpu.ecc", {"ecc": (0, 0)}, "warn", "ECC is off"),
        ("gpu.ecc", {"ecc": None, "errors": None, "rows": None}, "skip", "cannot be read"),
        ("gpu.persistence", {}, "pass", "on"),
        ("gpu.persistence", {"persistence": 0}, "warn", "off on GPU 0"),
        ("gpu.clocks", {}, "pass", "GPU 0: 1400 MHz of 1410 64 C"),
        ("gpu.clocks", {"reasons": 0x4}, "pass", "power cap"),  # usual under full load
        ("gpu.clocks", {"reasons": 0x40 | 0x4}, "warn", "heat (hardware)"),
        ("gpu.clocks", {"reasons": 0x80}, "warn", "power brake"),
        ("gpu.clocks", {"clock": 210}, "warn", "210 MHz of 1410"),
    ],
)
def test_what_nvml_says(
    probe: str,
    values: dict[str, Any],
    status: str,
    said: str,
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Nvml(**values)
    monkeypatch.setattr(bench.ctypes, "CDLL", lambda name: nvml)
    torch = fake_torch("CUDA")
    torch.ones = lambda *shape, device: device
    torch.mm = lambda a, b: None
    torch.cuda.synchronize = lambda index: None
    found = ask(bench, probe, torch)
    assert found.status == status and said in found.seen, found
    assert nvml.asked == b"0000:3b:00.0"


def test_no_nvml_is_no_fault(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(bench.ctypes, "CDLL", refuse)
    assert ask(bench, "gpu.ecc", fake_torch("CUDA")).status == "skip"
    monkeypatch.setattr(
        bench.ctypes, "CDLL", lambda name: SimpleNamespace()
    )  # a library without these functions
    assert ask(bench, "gpu.persistence", fake_torch("CUDA")).status == "skip"


def test_what_amds_driver_says(bench: ModuleType, root: Any) -> None:
    device = "/sys/bus/pci/devices/0000:3b:00.0"
    for path, text in (
        ("hwmon/hwmon3/temp1_input", "71000"),
        ("hwmon/hwmon3/freq1_input", "1700000000"),
        ("pp_dpm_sclk", "0: 500Mhz\n1: 1700Mhz *"),
        ("ras/umc_err_count", "ue: 0\nce: 5"),
    ):
        root(f"{device}/{path}", text)
    torch = fake_torch("HIP", arch="gfx90a")
    assert bench.gpu_state(probing(bench, torch), 0) == {
        "temperature_c": 71.0,
        "clock_mhz": 1700.0,
        "clock_max_mhz": 1700.0,
        "ecc": True,
        "ecc_uncorrected": 0,
    }
    assert ask(bench, "gpu.ecc", torch).status == "pass"
    root(f"{device}/ras/umc_err_count", "ue: 2\nce: 5")
    assert ask(bench, "gpu.ecc", torch).status == "fail"


def probing(bench: ModuleType, torch: Any) -> Any:
    run = bench.Run(bench.parse([]))
    run.torch = torch
    return run


# network --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("hsn", "pass"),
        ("hsn0", "pass"),
        ("=hsn0,hsn1", "pass"),
        ("=hsn", "fail"),
        ("ib0", "fail"),
        ("^lo", "pass"),
        ("^hsn,lo", "fail"),
        ("", "pass"),
    ],
)
def test_nccl_socket_ifname_names_an_interface(
    value: str, status: str, bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hsn0", "hsn1", "lo"):
        root(f"/sys/class/net/{name}/address")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    found = ask(bench, "nccl.interface", fake_torch("CUDA"))
    assert found.status == status, found
    assert status == "pass" or (f"NCCL_SOCKET_IFNAME={value}" in found.seen and "hsn0 hsn1 lo" in found.seen)


def test_several_nodes_with_a_fast_network_that_nobody_named(bench: ModuleType, root: Any) -> None:
    for name in ("eth0", "hsn0", "hsn1"):
        root(f"/sys/class/net/{name}/address")
    several = bench.Place(0, 8, 0, 4)
    found = ask(bench, "nccl.interface", fake_torch("HIP"), place=several)
    assert found.status == "warn" and "hsn0 hsn1" in found.seen and "NCCL_SOCKET_IFNAME=hsn" in found.advice
    assert ask(bench, "nccl.interface", fake_torch("HIP")).status == "pass"


OFI = """nid1:1:1 [0] NCCL INFO NCCL version 2.19.4+cuda12.2
nid1:1:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.7.4
nid1:1:9 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
nid1:1:9 [0] NCCL INFO Using network AWS Libfabric
nid1:1:9 [0] NCCL INFO Channel 00/0 : 0[3000] -> 1[41000] via P2P/IPC/read
"""
RCCL = """nid5:2:2 [0] NCCL INFO RCCL version 2.18.3+hip6.0 HEAD:2f6d59e+
nid5:2:2 [0] NCCL INFO NET/OFI Using aws-ofi-rccl 1.4.0
nid5:2:2 [0] NCCL INFO NET/OFI Selected Provider is cxi
"""
SOCKETS = """gpu1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
gpu1:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
gpu1:7:9 [0] NCCL INFO NET/Socket : Using [0]hsn0:10.0.0.1<0>
gpu1:7:9 [0] NCCL INFO Using network Socket
gpu1:7:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
INFINIBAND = "n:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nn:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]\n"


def test_what_nccls_log_says(bench: ModuleType) -> None:
    assert bench.transport(OFI) == {
        "library": "NCCL",
        "version": "2.19.4+cuda12.2",
        "network": "OFI (cxi)",
        "paths": ["P2P/IPC/read"],
    }
    said = bench.transport(RCCL)
    assert (said["library"], said["network"]) == ("RCCL", "OFI (cxi)")
    said = bench.transport(SOCKETS)
    assert (said["network"], said["paths"]) == ("Socket", ["SHM/direct/direct"])
    assert bench.transport(INFINIBAND)["network"] == "IB"
    assert bench.transport("nothing of interest")["network"] == ""


@pytest.mark.parametrize(
    ("log", "fabric", "nodes", "status"),
    [
        (OFI, "/sys/class/cxi/cxi0/x", 2, "pass"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 2, "fail"),
        (SOCKETS, "/sys/class/cxi/cxi0/x", 1, "warn"),
        (SOCKETS, "/sys/class/infiniband/mlx5_0/x", 2, "fail"),
        (SOCKETS, "", 2, "warn"),
        (SOCKETS, "", 1, "pass"),
        (INFINIBAND, "/sys/class/infiniband/mlx5_0/x", 2, "pass"),
        ("", "", 1, "skip"),
    ],
)
def test_falling_back_to_sockets(
    log: str, fabric: str, nodes: int, status: str, bench: ModuleType, root: Any
) -> None:
    root("/sys/class/net/eth0/address")
    if fabric:
        root(fabric)
    run = probing(bench, fake_torch("CUDA"))
    run.kept["nccl_log"], run.hosts = log, [f"n{i}" for i in range(nodes)]
    found = bench.found("nccl.transport", lambda: {"seen": bench.probe_transport(run)})
    assert found["status"] == status, found
    assert status != "fail" or ("aws-ofi" in found["advice"] and "Socket" in found["seen"])


@pytest.mark.parametrize(
    ("kind", "status"),
    [("lustre", "warn"), ("nfs4", "warn"), ("fuse.sshfs", "warn"), ("ext4", "pass"), ("tmpfs", "pass")],
)
def test_miopens_cache_on_a_network_file_system(
    kind: str, status: str, bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root(
        "/proc/self/mountinfo",
        f"1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:9 / {tmp_path} rw,relatime shared:2 - {kind} x rw\n",
    )
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", str(tmp_path / "db"))
    monkeypatch.delenv("MIOPEN_CUSTOM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = ask(bench, "miopen.cache", fake_torch("HIP"))
    assert found.status == status, found
    assert status == "pass" or (kind in found.seen and "MIOPEN_USER_DB_PATH" in found.advice)
    assert ask(bench, "miopen.cache", fake_torch("CUDA")).status == "skip"


def test_miopens_cache_that_cannot_be_written(
    bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = ask(bench, "miopen.cache", fake_torch("HIP"))
    assert found.status == "warn" and "cannot be written" in found.seen


# processor ------------------------------------------------------------------------------------------------------------


def test_the_two_threads_of_one_core_are_one_core(
    bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu in (3, 67):
        root(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "3,67")
    monkeypatch.setattr(bench, "affinity", lambda: {3, 67})
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    found = ask(bench, "cpu.affinity")
    assert found.status == "fail" and "threads of one core" in found.advice
    monkeypatch.setattr(bench, "affinity", lambda: {3, 67, 4, 68})
    assert ask(bench, "cpu.affinity").status == "pass"


def test_a_quota_below_one_core(bench: ModuleType, root: Any) -> None:
    root("/sys/fs/cgroup/cpu.max", "50000 100000")
    found = ask(bench, "cpu.affinity")
    assert found.status in ("warn", "fail") and (found.status == "fail" or "a quota of 0.5" in found.seen)
    root("/sys/fs/cgroup/cpu.max", "max 100000")
    assert "quota" not in ask(bench, "cpu.affinity").seen


def test_a_rank_far_from_its_gpu(bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root("/sys/bus/pci/devices/0000:3b:00.0/local_cpulist", "48-63,176-191\n")
    monkeypatch.setattr(bench, "affinity", lambda: set(range(8)))
    found = ask(bench, "gpu.distance", fake_torch("CUDA"), place=bench.Place(0, 4, 0, 4))
    assert (
        found.status == "warn"
        and "cores 0-7; near: GPU 0 48-63,176-191" in found.seen
        and "48-63,176-191" in found.advice
    )
    monkeypatch.setattr(bench, "affinity", lambda: set(range(48, 56)))
    assert ask(bench, "gpu.distance", fake_torch("CUDA"), place=bench.Place(0, 4, 0, 4)).status == "pass"
    assert ask(bench, "gpu.distance", fake_torch("CPU")).status == "skip"


def test_the_pci_address_without_torchs_help(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch("HIP")
    properties = torch.cuda.get_device_properties(0)
    for name in ("pci_bus_id", "pci_device_id", "pci_domain_id"):
        delattr(properties, name)

    def told(buffer: Any, size: int, index: int) -> int:
        buffer.value = b"0000:C1:00.0"
        return 0

    monkeypatch.setattr(bench.ctypes, "CDLL", lambda name: SimpleNamespace(hipDeviceGetPCIBusId=told))
    assert bench.pci_address(probing(bench, torch), 0) == "0000:c1:00.0"
    monkeypatch.setattr(bench.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert bench.pci_address(probing(bench, torch), 0) == ""


@pytest.mark.parametrize(
    ("value", "ranks", "status"),
    [
        ("8", 1, "pass"),
        ("16", 1, "warn"),
        ("many", 1, "warn"),
        ("0", 1, "warn"),
        ("1", 1, "warn"),
        ("1", 8, "pass"),
        ("4", 8, "warn"),
        ("4,2", 1, "pass"),
        ("", 1, "pass"),
    ],
)
def test_omp_num_threads(
    value: str, ranks: int, status: str, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "affinity", lambda: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    found = ask(bench, "cpu.threads", expect="none", place=bench.Place(0, ranks, 0, ranks))
    assert found.status == status, found
    assert not value or f"OMP_NUM_THREADS={value}" in found.seen


# the image and its surroundings ---------------------------------------------------------------------------------------


def test_a_home_that_hides_the_images_files(
    bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    mounts = f"1 0 8:1 / / rw - overlay x rw\n2 1 0:9 / {str(home)} rw - nfs x rw\n"
    root("/proc/self/mountinfo", mounts)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home}/.local/bin:/usr/bin")  # usual, and no evidence
    found = ask(bench, "system.home")
    assert found.status == "pass" and "(mounted)" in found.seen
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}/lib")
    found = ask(bench, "system.home")
    assert found.status == "warn" and f"LD_LIBRARY_PATH={home}/lib" in found.seen
    monkeypatch.setenv("CONDA_PREFIX", f"{home}/conda")
    found = ask(bench, "system.home")
    assert (
        found.status == "fail" and f"CONDA_PREFIX={home}/conda" in found.seen and "--no-home" in found.advice
    )
    root(
        "/proc/self/mountinfo", mounts.splitlines()[0] + "\n"
    )  # nothing is mounted there: nothing can be hidden
    assert ask(bench, "system.home").status == "pass"
    root("/proc/self/mountinfo", mounts)
    monkeypatch.delenv("CONDA_PREFIX")
    monkeypatch.setattr(sys, "prefix", f"{home}/venv")
    found = ask(bench, "system.home")
    assert found.status == "fail" and "python runs from" in found.seen


def test_no_home(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    found = ask(bench, "system.home")
    assert found.status == "warn" and "does not exist" in found.seen
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in ask(bench, "system.home").seen


def test_the_time_zone(bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TZ", "Europe/Zurich")
    found = ask(bench, "system.timezone")
    assert found.status == "warn" and "TZ=Europe/Zurich" in found.seen
    root("/usr/share/zoneinfo/Europe/Zurich")
    assert ask(bench, "system.timezone").status == "pass"
    monkeypatch.delenv("TZ")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "localtime").symlink_to("/usr/share/zoneinfo/gone")
    found = ask(bench, "system.timezone")
    assert found.status == "warn" and "zoneinfo/gone" in found.seen


def test_the_c_library(bench: ModuleType, root: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench.platform, "libc_ver", lambda: ("glibc", "2.31"))
    assert ask(bench, "system.glibc").status == "pass"
    library = tmp_path / ".singularity.d" / "libs" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + bytes(60) + b"\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBC_2.34\0")
    found = ask(bench, "system.glibc")
    assert (
        found.status == "fail"
        and "libcuda.so.1 needs 2.34" in found.seen
        and "glibc 2.34 or newer" in found.advice
    )
    monkeypatch.setattr(bench.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert ask(bench, "system.glibc").seen == "glibc 2.36; 1 libraries of the host fit"
    monkeypatch.setattr(bench.platform, "libc_ver", lambda: ("glibc", "2.17"))
    library.unlink()
    assert ask(bench, "system.glibc").status == "warn"
    monkeypatch.setattr(bench.platform, "libc_ver", lambda: ("", ""))
    assert ask(bench, "system.glibc").status == "fail"


def test_the_locale(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    found = ask(bench, "system.locale")
    assert found.status == "warn" and "ascii" in found.seen and "C.UTF-8" in found.advice


# after the measurements -----------------------------------------------------------------------------------------------


def late(bench: ModuleType, name: str, prepare: Any) -> Any:
    run = probing(bench, None)
    prepare(run)
    look = next(p for p in bench.PROBES if p.id == name)
    assert look.late
    return SimpleNamespace(**bench.found(name, lambda: {"seen": look.look(run)}))


def test_a_process_that_does_not_get_its_core(bench: ModuleType, root: Any) -> None:
    assert (
        late(
            bench, "machine.steady", lambda run: setattr(run, "wall_s", 1.0) or setattr(run, "busy_s", 0.97)
        ).status
        == "pass"
    )
    found = late(
        bench, "machine.steady", lambda run: setattr(run, "wall_s", 1.0) or setattr(run, "busy_s", 0.5)
    )
    assert found.status == "warn" and "50 % of a core" in found.seen
    root("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nthrottled_usec 4000000")
    found = late(bench, "machine.steady", lambda run: run.kept.update(throttled_s=1.0))
    assert found.status == "warn" and "held it back for 3.0 s" in found.seen and "quota" in found.advice


def test_uneven_figures(bench: ModuleType) -> None:
    uneven = [{"id": name, "status": "pass", "lost_fraction": 0.5} for name in ("matmul.fp32", "memory.copy")]
    found = late(bench, "machine.steady", lambda run: run.results.extend(uneven))
    assert found.status == "warn" and found.seen == "uneven: matmul.fp32, memory.copy"
    assert late(bench, "machine.steady", lambda run: run.results.extend(uneven[:1])).status == "pass"


def test_a_spent_budget(bench: ModuleType) -> None:
    found = late(bench, "time.budget", lambda run: run.kept.update(missed=["training", "dataloader"]))
    assert found.status == "warn" and "not enough for training, dataloader" in found.seen
    assert late(bench, "time.budget", lambda run: None).status == "pass"


@pytest.mark.parametrize(("hangs", "status"), [(0, "pass"), (1, "warn"), (2, "fail")])
def test_workers_that_hang(
    hangs: int, status: str, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked workers may hang by chance: once is told, twice is no chance."""
    tries: list[object] = []

    def epochs(run: object, samples: object) -> dict[str, float]:
        tries.append(samples)
        if len(tries) <= hangs:
            raise RuntimeError("DataLoader timed out after 20 seconds")
        return {"median_samples_per_s": 1.0}

    monkeypatch.setattr(bench, "load_epochs", epochs)
    monkeypatch.setattr(bench, "Samples", lambda torch, count: object())
    try:
        item = bench.measure_loader(SimpleNamespace(need_torch=None))
        found = ("pass", item["median_samples_per_s"])
    except bench.Outcome as e:
        found = (e.status, e.seen)
        assert "timed out" in e.seen and ("spawn" in e.advice) == (hangs == 1)
    assert found[0] == status and len(tries) == min(hangs, 1) + 1


def test_a_temporary_folder_too_deep_for_sockets(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hang(run: object, samples: object) -> None:
        raise RuntimeError("DataLoader timed out after 20 seconds")

    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(bench.tempfile, "tempdir", str(deep))
    monkeypatch.setattr(bench, "load_epochs", hang)
    monkeypatch.setattr(bench, "Samples", lambda torch, count: object())
    for check in (bench.probe_tmp, bench.measure_loader):
        with pytest.raises(bench.Outcome) as found:
            check(SimpleNamespace(need_torch=None))
        assert "too long a path for sockets" in found.value.seen and "TMPDIR" in found.value.advice
