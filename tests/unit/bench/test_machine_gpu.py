"""What the driver reports about a GPU: address, identity, compute mode, PCIe link."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.machine.gpu import compute_mode, gpu_use, identity, is_part, pci_address, pcie_link
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


def test_pci_address_from_torch() -> None:
    assert pci_address(make_run(fake_torch("CUDA")), 0) == "0000:3b:00.0"


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


def test_partition_of_mi300(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP reports functions for the partitions that do not exist as PCI devices."""
    root("/proc/self/maps", "7f0000001000-7f0000002000 r-xp 00000000 08:01 13 /opt/lib/libamdhip64.so.6")
    loads(monkeypatch, b"0000:c1:00.3")
    run = make_run(old_torch("HIP"))
    assert pci_address(run, 0) == "0000:c1:00.0"
    root("/sys/bus/pci/devices/0000:c1:00.3/vendor", "0x1002")
    assert pci_address(run, 0) == "0000:c1:00.3"


def test_nvidia(nvml: FakeNvml) -> None:
    assert identity(make_run(fake_torch("CUDA")), 0) == {
        "uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "serial": "1650522000000",
        "vbios": "96.00.A5.00.01",
        "driver": "580.65.06",
        "power_limit_w": 700.0,
        "compute_mode": "default",
        "mig": False,
        "nvlink": {"links": 18, "active": 18},
        "pcie": {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16},
    }


@pytest.mark.parametrize(
    ("mode", "name"), [(0, "default"), (2, "prohibited"), (3, "exclusive_process"), (99, "")]
)
def test_compute_mode(mode: int, name: str, nvml: FakeNvml) -> None:
    nvml.set(mode=mode)
    assert compute_mode(make_run(fake_torch("CUDA")), 0) == name


def test_slice(nvml: FakeNvml) -> None:
    """With MIG, the compute mode is the slice's, which only its UUID names; use is the whole GPU's."""
    nvml.set(mig=1, mode=3)
    torch = fake_torch("CUDA")
    run = make_run(torch)
    assert is_part(run, 0)
    assert (compute_mode(run, 0), gpu_use(run, 0)) == ("", {})
    torch.cuda.get_device_properties(0).uuid = "99999999-8888-7777-6666-555555555555"
    assert compute_mode(run, 0) == "exclusive_process"
    described = identity(run, 0)
    assert described["mig"] is True
    assert described["uuid"] == "MIG-99999999-8888-7777-6666-555555555555"


def test_gpu_without_mig(nvml: FakeNvml) -> None:
    """GPUs before Ampere do not have it; GPUs on PCIe have no NVLink."""
    nvml.set(mig=-1, links=0)
    described = identity(make_run(fake_torch("CUDA")), 0)
    assert "mig" not in described and "nvlink" not in described


def test_use(nvml: FakeNvml) -> None:
    """The number of processes is asked for without room for any."""
    nvml.set(busy=97, processes=2, used=30 << 30)
    assert gpu_use(make_run(fake_torch("CUDA")), 0) == {
        "total_bytes": 80 << 30, "memory_bytes": 30 << 30, "busy_percent": 97, "processes": 2,
    }  # fmt: skip


def test_amd(root: WriteFile) -> None:
    root("/sys/module/amdgpu/version", "6.16.6")
    for name, text in {
        "unique_id": "9a1c0b1d2e3f4a5b",
        "serial_number": "",
        "vbios_version": "113-D65201-017",
        "hwmon/hwmon2/power1_cap": "560000000",
        "current_link_speed": "8.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16",
        "mem_info_vram_total": str(64 << 30),
        "mem_info_vram_used": str(1 << 30),
        "gpu_busy_percent": "3",
    }.items():
        root(f"{AMD}/{name}", text)
    run = make_run(fake_torch("HIP", arch="gfx90a"))
    assert identity(run, 0) == {
        "uuid": "9a1c0b1d2e3f4a5b",
        "vbios": "113-D65201-017",
        "driver": "6.16.6",
        "power_limit_w": 560.0,
        "pcie": {"generation": 3, "width": 16, "max_generation": 4, "max_width": 16},
    }
    assert gpu_use(run, 0) == {"total_bytes": 64 << 30, "memory_bytes": 1 << 30, "busy_percent": 3}
    assert compute_mode(run, 0) == ""
    root(f"{AMD}/current_compute_partition", "CPX")
    assert gpu_use(run, 0) == {} and identity(run, 0)["partition"] == "CPX"


def test_link_without_nvml(root: WriteFile) -> None:
    """The kernel knows the link of every PCI device; 255 lanes and unknown speeds are left out."""
    run = make_run(fake_torch("CUDA"))
    assert pcie_link(run, 0) == {}
    for name, text in (("speed", "32.0 GT/s PCIe"), ("width", "8")):
        root(f"{AMD}/current_link_{name}", text)
    root(f"{AMD}/max_link_speed", "Unknown")
    root(f"{AMD}/max_link_width", "255")
    assert pcie_link(run, 0) == {"generation": 5, "width": 8}
