"""A stand-in for torch on a machine with GPUs. Few imports: ranks of the benchmark start with it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any


def fake_torch(
    build: str,
    devices: int = 1,
    arch: str = "sm_80",
    known: Sequence[str] = ("sm_80",),
    runtime: str = "12.4",
) -> Any:
    """The part of torch that the probes use, on a machine with GPUs."""
    capability = int("".join(c for c in arch if c.isdigit()) or 0) if arch.startswith("sm_") else 90
    properties = SimpleNamespace(
        name="GPU", major=capability // 10, minor=capability % 10, gcnArchName=f"{arch}:sramecc+:xnack-",
        total_memory=80 << 30, multi_processor_count=108, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0,
    )  # fmt: skip

    def init() -> None:
        if not devices:
            raise RuntimeError(
                "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU.\nmore"
            )

    cuda = SimpleNamespace(
        is_available=lambda: devices > 0, device_count=lambda: devices,
        get_arch_list=lambda: list(known) if devices else [],
        get_device_properties=lambda i: properties, get_device_name=lambda i: properties.name, init=init,
        set_device=lambda index: None,
        empty_cache=lambda: None,
    )  # fmt: skip
    cudnn = SimpleNamespace(is_available=lambda: devices > 0, enabled=True, version=lambda: 90100)
    version = SimpleNamespace(
        cuda=runtime if build == "CUDA" else None, hip="6.2" if build == "HIP" else None
    )
    return SimpleNamespace(
        cuda=cuda, version=version, __version__="2.9", __file__="/opt/conda/lib/torch/__init__.py",
        get_num_threads=lambda: 8, set_num_threads=lambda count: None,
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: " ".join(known)),
        backends=SimpleNamespace(cudnn=cudnn),
    )  # fmt: skip
