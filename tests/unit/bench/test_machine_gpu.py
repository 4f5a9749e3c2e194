"""The PCI address of a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.machine.gpu import pci_address
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


def test_pci_address_from_torch() -> None:
    assert pci_address(make_run(fake_torch("CUDA")), 0) == "0000:3b:00.0"


def test_pci_address_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of torch do not know it."""
    torch = fake_torch("HIP")
    properties = torch.cuda.get_device_properties(0)
    for name in ("pci_bus_id", "pci_device_id", "pci_domain_id"):
        delattr(properties, name)

    def answer(buffer: Any, size: int, index: int) -> int:
        buffer.value = b"0000:C1:00.0"
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(hipDeviceGetPCIBusId=answer))
    assert pci_address(make_run(torch), 0) == "0000:c1:00.0"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert pci_address(make_run(torch), 0) == ""
