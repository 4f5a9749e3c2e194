"""reference.yml: its entries, its figures and their sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import builder.smoke
from builder.smoke.reference import references
from tests.support.reports import A100_40, A100_80, GIB, MI250X, STRANGE


@pytest.mark.parametrize(
    ("facts", "id"),
    [
        (A100_40, "a100-sxm4-40gb"),
        (A100_80, "a100-sxm4-80gb"),
        (MI250X, "mi250x-gcd"),
        ({"name": "A100-SXM4-40GB", "memory_bytes": 40 * GIB}, "a100-sxm4-40gb"),
        ({"name": "NVIDIA A100-PCIE-40GB", "memory_bytes": 40 * GIB}, "a100-pcie-40gb"),
        ({"name": "NVIDIA A100 80GB PCIe", "memory_bytes": 80 * GIB}, "a100-pcie-80gb"),
        ({"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 79 * GIB}, "h100-sxm"),
        ({"name": "NVIDIA H100 PCIe", "memory_bytes": 79 * GIB}, "h100-pcie"),
        ({"name": "NVIDIA H200", "memory_bytes": 140 * GIB}, "h200"),
        ({"name": "AMD Instinct MI100", "memory_bytes": 32 * GIB}, "mi100"),
        ({"name": "Arcturus GL-XL [AMD Instinct MI100]", "memory_bytes": 32 * GIB}, "mi100"),
        ({"name": "AMD Instinct MI210", "memory_bytes": 64 * GIB}, "mi210"),
        ({"name": "AMD Instinct MI250X / MI250", "memory_bytes": 64 * GIB}, "mi250x-gcd"),
        ({"name": "AMD Instinct MI300A", "memory_bytes": 128 * GIB}, "mi300a"),
        ({"name": "AMD Instinct MI300X", "memory_bytes": 192 * GIB}, "mi300x"),
        ({"name": "Tesla V100-SXM2-32GB", "memory_bytes": 32 * GIB}, "v100-sxm2"),
        ({"name": "Tesla V100-PCIE-16GB", "memory_bytes": 16 * GIB}, "v100-pcie"),
        ({"name": "Tesla P100-PCIE-16GB", "memory_bytes": 16 * GIB}, "p100-pcie"),
        ({"name": "Tesla T4", "memory_bytes": 15 * GIB}, "t4"),
        ({"name": "NVIDIA L40S", "memory_bytes": 45 * GIB}, "l40s"),
        # ROCm without its table of names
        ({**MI250X, "name": "AMD Radeon Graphics"}, "mi250x-gcd"),
        ({"name": "", "architecture": "gfx90a", "memory_bytes": 64 * GIB, "multiprocessors": 104}, "mi210"),
        ({"name": "", "architecture": "gfx942", "memory_bytes": 192 * GIB, "multiprocessors": 304}, "mi300x"),
    ],
)
def test_find_device(facts: dict[str, Any], id: str) -> None:
    """Every name that torch or ROCm reports leads to its entry in reference.yml."""
    found = references().find(facts)
    assert found is not None and found.id == id


@pytest.mark.parametrize(
    "facts",
    [
        STRANGE,
        {},
        {"name": 7},
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "memory_bytes": 5 * GIB},  # a slice
        {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 20 * GIB},  # half of one
        {"name": "NVIDIA H100 NVL", "memory_bytes": 94 * GIB},
        {"name": "NVIDIA H200 NVL", "memory_bytes": 140 * GIB},
        {"name": "Tesla T40", "memory_bytes": 15 * GIB},
        {"name": "", "architecture": "gfx1100", "memory_bytes": 24 * GIB, "multiprocessors": 48},
    ],
)
def test_find_no_device(facts: dict[str, Any]) -> None:
    """Slices, virtual GPUs and models that are not listed have no entry."""
    assert references().find(facts) is None


#: FLOP per clock of a multiprocessor (multiply and add are two), by architecture. From the white papers.
PER_CLOCK = {
    "sm_60": {"fp32": 128, "fp16": 256},
    "sm_70": {"fp32": 128, "fp16": 1024},
    "sm_75": {"fp32": 128, "fp16": 1024},
    "sm_80": {"fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048},
    "sm_89": {"fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024},
    "sm_90": {"fp32": 256, "tf32": 2048, "bf16": 4096, "fp16": 4096},
    "gfx908": {"fp32": 256, "bf16": 512, "fp16": 1024},
    "gfx90a": {"fp32": 256, "bf16": 1024, "fp16": 1024},
    "gfx942": {"fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048},
}
#: Boost clocks in MHz.
CLOCK = {
    "a100-sxm4-40gb": 1410,
    "a100-sxm4-80gb": 1410,
    "a100-pcie-40gb": 1410,
    "a100-pcie-80gb": 1410,
    "h100-sxm": 1830,
    "h200": 1830,
    "h100-pcie": 1620,
    "mi100": 1502,
    "mi210": 1700,
    "mi250x-gcd": 1700,
    "mi300a": 2100,
    "mi300x": 2100,
    "v100-sxm2": 1530,
    "v100-pcie": 1380,
    "v100s-pcie": 1597,
    "p100-pcie": 1303,
    "p100-sxm2": 1480,
    "t4": 1590,
    "l40s": 2520,
}
VECTOR_CLOCK = {"h100-sxm": 1980, "h200": 1980, "h100-pcie": 1755}  # higher than under its matrix units


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_peaks(device: Any) -> None:
    """Arithmetic peaks are units times FLOP per clock times clock."""
    for key, per_clock in PER_CLOCK[device.architecture].items():
        clock = VECTOR_CLOCK.get(device.id, CLOCK[device.id]) if key == "fp32" else CLOCK[device.id]
        assert device.peak[key] == pytest.approx(
            device.multiprocessors * per_clock * clock * 1e-6, rel=0.02
        ), key
    assert set(device.peak) - {"memory", "transfer"} == set(PER_CLOCK[device.architecture])


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_figures_have_sources(device: Any) -> None:
    """Every figure has a dated source, and published figures are below the peak."""
    assert references().sources[device.peak_source][1].startswith("https://")
    for key, figure in device.achieved.items():
        title, url = references().sources[figure.source]
        assert re.search(r"20\d\d", title) and url.startswith("https://"), figure.source
        assert figure.kind in ("achieved", "acceptance")
        if key in device.peak:
            assert 0.4 < figure.value / device.peak[key] < 1, key
        assert bool(figure.gpus) == (key == "allreduce")


def test_unknown_figures_are_listed() -> None:
    """Figures without a publication are listed as unknown; every source is used."""
    data = yaml.safe_load((Path(builder.smoke.__file__).parent / "reference.yml").read_text())
    for device in data["devices"]:
        wanted = (set(device["peak"]) - {"source"}) | {"allreduce"}
        assert set(device["achieved"]) | set(device["unknown"]) == wanted, device["id"]
        assert not set(device["achieved"]) & set(device["unknown"]), device["id"]
    assert {
        s
        for d in data["devices"]
        for s in [d["peak"]["source"], *(f["source"] for f in d["achieved"].values())]
    } == set(data["sources"])
