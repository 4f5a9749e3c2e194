"""What the driver reports about a GPU: address, identity, PCIe link, near cores."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.machine.gpu import gpu_use, identity, near_gpu, pci_address
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run
from tests.unit.bench.conftest import WriteFile

AMD = "/sys/bus/pci/devices/0000:3b:00.0"


def old_torch(build: str) -> Any:
    """A version that does not report the PCI address."""
    torch = fake_torch(build)
    properties = torch.cuda.get_device_properties(0)
    for name in ("pci_bus_id", "pci_device_id", "pci_domain_id"):
        delattr(properties, name)
    return torch


def loads(monkeypatch: pytest.MonkeyPatch, address: bytes) -> list[str]:
    """The libraries that are loaded from now on; each of them reports this address."""
    asked = []

    def answer(buffer: Any, size: int, index: int) -> int:
        buffer.value = address
        return 0

    def load(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(hipDeviceGetPCIBusId=answer, cuDeviceGetPCIBusId=answer)

    monkeypatch.setattr(ctypes, "CDLL", load)
    return asked


def test_pci_address_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of torch do not know it."""
    asked = loads(monkeypatch, b"0000:C1:00.0")
    assert pci_address(make_run(old_torch("CUDA")), 0) == "0000:c1:00.0"
    assert asked == ["libcuda.so.1"]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert pci_address(make_run(old_torch("CUDA")), 0) == ""


def test_hip_that_torch_has_loaded(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another HIP runtime, from /opt/rocm, must not come into the process beside torch's."""
    asked = loads(monkeypatch, b"0000:C1:00.0")
    run = make_run(old_torch("HIP"))
    assert (pci_address(run, 0), asked) == ("", [])
    path = "/opt/conda/lib/python3.12/site-packages/torch/lib/libamdhip64.so"
    root(
        "/proc/self/maps",
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n"
        f"7f0000001000-7f0000002000 r-xp 00000000 08:01 13                 {path}\n"
        "7ffff0000000-7ffff0001000 rw-p 00000000 00:00 0\n",
    )
    assert (pci_address(run, 0), asked) == ("0000:c1:00.0", [path])


def test_nvidia(nvml: FakeNvml) -> None:
    assert identity(make_run(fake_torch("CUDA")), 0) == {
        "uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "power_limit_w": 700.0,
        "mig": False,
        "nvlink": {"links": 18, "active": 18},
    }


def test_slice(nvml: FakeNvml) -> None:
    """With MIG, the use that NVML reports is the whole GPU's."""
    nvml.set(mig=1)
    torch = fake_torch("CUDA")
    run = make_run(torch)
    assert gpu_use(run, 0) == {}
    torch.cuda.get_device_properties(0).uuid = "99999999-8888-7777-6666-555555555555"
    described = identity(run, 0)
    assert described["mig"] is True
    assert described["uuid"] == "MIG-99999999-8888-7777-6666-555555555555"


def test_amd(root: WriteFile) -> None:
    for name, text in {
        "unique_id": "9a1c0b1d2e3f4a5b",
        "hwmon/hwmon2/power1_cap": "560000000",
        "mem_info_vram_total": str(64 << 30),
        "mem_info_vram_used": str(1 << 30),
        "gpu_busy_percent": "3",
    }.items():
        root(f"{AMD}/{name}", text)
    run = make_run(fake_torch("HIP", arch="gfx90a"))
    assert identity(run, 0) == {
        "uuid": "9a1c0b1d2e3f4a5b",
        "power_limit_w": 560.0,
    }
    assert gpu_use(run, 0) == {"total_bytes": 64 << 30, "memory_bytes": 1 << 30, "busy_percent": 3}


def test_near_gpu(root: WriteFile) -> None:
    """The block runs on the cores near the GPU, if there are any that the process may use."""
    run, own = make_run(fake_torch("CUDA")), os.sched_getaffinity(0)
    with near_gpu(run, 0) as bound:
        assert not bound, "the system does not report which cores are near"
    root(f"{AMD}/local_cpulist", f"{max(own)}\n")
    with near_gpu(run, 0) as bound:
        assert bound and os.sched_getaffinity(0) == {max(own)}
    assert os.sched_getaffinity(0) == own
    root(f"{AMD}/local_cpulist", "4000-4001\n")
    with near_gpu(run, 0) as bound:
        assert not bound and os.sched_getaffinity(0) == own
