"""reference.yml: its entries, its figures and their sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import builder.smoke
from builder.smoke.limits import LIMITS
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
        # one name, two GPUs
        ({**MI250X, "name": "AMD Instinct MI250X / MI250"}, "mi250x-gcd"),
        ({**MI250X, "name": "AMD Instinct MI250X / MI250", "multiprocessors": 104}, "mi250-gcd"),
        ({"name": "NVIDIA H100", "memory_bytes": 65247 << 20}, "h100-64gb"),
        ({"name": "NVIDIA H100", "memory_bytes": 94 * GIB}, "h100-94gb"),
        ({"name": "AMD Instinct MI300A", "memory_bytes": 128 * GIB}, "mi300a"),
        ({"name": "AMD Instinct MI300X", "memory_bytes": 192 * GIB}, "mi300x"),
        ({"name": "Tesla V100-SXM2-32GB", "memory_bytes": 32 * GIB}, "v100-sxm2"),
        ({"name": "Tesla V100-PCIE-16GB", "memory_bytes": 16 * GIB}, "v100-pcie"),
        ({"name": "Tesla P100-PCIE-16GB", "memory_bytes": 16 * GIB}, "p100-pcie"),
        ({"name": "Tesla T4", "memory_bytes": 15 * GIB}, "t4"),
        # sizes as torch or nvidia-smi report them, in MiB
        ({"name": "NVIDIA L40S", "memory_bytes": 45589 << 20}, "l40s"),
        ({"name": "NVIDIA L4", "memory_bytes": 23034 << 20}, "l4"),
        ({"name": "NVIDIA A40", "memory_bytes": 45416 << 20, "multiprocessors": 84}, "a40"),
        ({"name": "NVIDIA A30", "memory_bytes": 24 * GIB}, "a30"),
        ({"name": "NVIDIA A10", "memory_bytes": 22 * GIB}, "a10"),
        ({"name": "NVIDIA RTX A6000", "memory_bytes": 48676 << 20}, "rtx-a6000"),
        ({"name": "NVIDIA A100-SXM-64GB", "memory_bytes": 68099571712}, "a100-sxm-64gb"),
        ({"name": "NVIDIA H100 NVL", "memory_bytes": 99456909312}, "h100-nvl"),
        ({"name": "NVIDIA H200 NVL", "memory_bytes": 143771 << 20}, "h200-nvl"),
        ({"name": "NVIDIA GH200 120GB", "memory_bytes": 97871 << 20}, "gh200-96gb"),
        ({"name": "NVIDIA GH200 480GB", "memory_bytes": 95 * GIB}, "gh200-96gb"),
        ({"name": "NVIDIA GH200 144G HBM3e", "memory_bytes": 153008209920}, "gh200-144gb"),
        ({"name": "NVIDIA B200", "memory_bytes": 182642 << 20, "multiprocessors": 148}, "b200"),
        ({"name": "NVIDIA GB200", "memory_bytes": 189471 << 20, "multiprocessors": 152}, "gb200"),
        ({"name": "NVIDIA B300 SXM6 AC", "memory_bytes": 275040 << 20}, "b300"),
        ({"name": "NVIDIA GeForce RTX 4090", "memory_bytes": 24563 << 20}, "rtx-4090"),
        ({"name": "NVIDIA GeForce RTX 5090", "memory_bytes": 32109 << 20}, "rtx-5090"),
        ({"name": "AMD Instinct Mi325X VF", "memory_bytes": 256 * GIB}, "mi325x"),
        ({"name": "AMD Instinct MI350X", "memory_bytes": 288 * GIB}, "mi350x"),
        ({"name": "Radeon RX 7900 XTX", "memory_bytes": 24560 << 20, "multiprocessors": 48}, "rx-7900-xtx"),
        # ROCm without its table of names
        ({**MI250X, "name": "AMD Radeon Graphics"}, "mi250x-gcd"),
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
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "memory_bytes": 5 * GIB},  # a slice of unknown width
        {"name": "NVIDIA A100-SXM4-40GB MIG odd", "multiprocessors": 14},
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "multiprocessors": 200},
        {"name": "NVIDIA H100 MIG 1g.8gb", "multiprocessors": 16},  # of 64 GB, whose width is unknown
        {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 20 * GIB},  # half of one
        {"name": "NVIDIA H100"},  # of 64, 94 or 96 GB
        {"name": "AMD Instinct MI250X / MI250", "memory_bytes": 64 * GIB},  # one of two
        {"name": "NVIDIA H200", "memory_bytes": 140 * GIB, "multiprocessors": 66},  # a part of it
        {"name": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "memory_bytes": 95 * GIB},
        {"name": "NVIDIA A10G", "memory_bytes": 22587 << 20, "multiprocessors": 80},
        {"name": "Tesla T40", "memory_bytes": 15 * GIB},
        {"name": "", "architecture": "gfx1100", "memory_bytes": 24 * GIB},
        {"name": "", "architecture": "gfx90a", "memory_bytes": 64 * GIB, "multiprocessors": 104},  # two GPUs
    ],
)
def test_find_no_device(facts: dict[str, Any]) -> None:
    """What is not listed or cannot be told from another GPU has no entry."""
    assert references().find(facts) is None


@pytest.mark.parametrize(
    ("name", "units", "compute", "memory"),
    [
        # names and multiprocessors as torch and nvidia-smi mig -lgip report them
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 14 / 108, 1 / 8),
        ("NVIDIA A100 80GB PCIe MIG 1g.10gb", 14, 14 / 108, 1 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 98, 98 / 108, 98 / 108),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 16 / 132, 16 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 26, 26 / 132, 26 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, 60 / 132, 60 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 16, 16 / 132, 16 / 132),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 16, 16 / 132, 16 / 132),
        ("NVIDIA H100 PCIe MIG 3g.40gb", 60, 60 / 114, 4 / 8),
        ("NVIDIA H100 MIG 3g.47gb", 60, 60 / 132, 60 / 132),
        ("NVIDIA A30 MIG 2g.12gb", 28, 28 / 56, 4 / 8),
    ],
)
def test_slices(name: str, units: int, compute: float, memory: float) -> None:
    """A MIG slice has its share of the whole GPU's figures; what it shares with others is left out."""
    whole = next(d for d in references().devices if d.match.fullmatch(name.partition(" MIG ")[0]) and d.peak)
    whole = next(d for d in references().devices if d.multiprocessors and d.match == whole.match)
    found = references().find({"name": name, "multiprocessors": units, "memory_bytes": 5 * GIB})
    assert found is not None and found.id == whole.id and found.profile in name
    assert found.peak["bf16"] == pytest.approx(compute * whole.peak["bf16"])
    if "memory" in whole.peak:
        assert found.peak["memory"] == pytest.approx(memory * whole.peak["memory"])
    for key in set(whole.achieved) - {"transfer", "allreduce"}:
        share = memory if key in ("copy", "triad") else compute
        assert found.achieved[key][0].value == pytest.approx(share * whole.achieved[key][0].value)
    assert not {"transfer", "allreduce"} & (set(found.peak) | set(found.achieved))


#: FLOP per clock of a multiprocessor (multiply and add are two), by architecture. From the white papers.
ARCHITECTURES = {
    "sm_60": {"fp64": 64, "fp32": 128, "fp16": 256},
    "sm_70": {"fp64": 64, "fp32": 128, "fp16": 1024},
    "sm_75": {"fp64": 4, "fp32": 128, "fp16": 1024},
    "sm_80": {"fp64": 128, "fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048},
    "sm_86": {"fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024},
    "sm_89": {"fp64": 4, "fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024, "fp8": 2048},
    "sm_90": {"fp64": 256, "fp32": 256, "tf32": 2048, "bf16": 4096, "fp16": 4096, "fp8": 8192},
    "sm_100": {"fp64": 128, "fp32": 256, "tf32": 4096, "bf16": 8192, "fp16": 8192, "fp8": 16384},
    "sm_103": {"fp64": 4, "fp32": 256, "tf32": 4096, "bf16": 8192, "fp16": 8192, "fp8": 16384},
    "sm_120": {"fp64": 4, "fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024, "fp8": 2048},
    "gfx908": {"fp64": 64, "fp32": 256, "bf16": 512, "fp16": 1024},
    "gfx90a": {"fp64": 256, "fp32": 256, "bf16": 1024, "fp16": 1024},
    "gfx942": {"fp64": 256, "fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048, "fp8": 4096},
    "gfx950": {"fp64": 128, "fp32": 256, "bf16": 4096, "fp16": 4096, "fp8": 8192},
    "gfx1100": {"fp32": 512, "bf16": 1024, "fp16": 1024},
}
#: GPUs that do half of it where they sum in fp32: GeForce, and the L40 by its data sheet.
HALVED = {"tf32": 256, "bf16": 512, "fp16": 512, "fp8": 1024}
PER_CLOCK = {"rtx-4090": HALVED, "rtx-5090": HALVED, "l40": HALVED}
#: Boost clocks in MHz.
CLOCK = {
    "a100-sxm4-40gb": 1410,
    "a100-sxm4-80gb": 1410,
    "a100-pcie-40gb": 1410,
    "a100-pcie-80gb": 1410,
    "a10": 1695,
    "a30": 1440,
    "a40": 1740,
    "rtx-a6000": 1800,
    "h100-sxm": 1830,
    "h100-94gb": 1830,
    "h100-pcie": 1620,
    "h100-nvl": 1545,
    "h200": 1830,
    "h200-nvl": 1545,
    "gh200-96gb": 1830,
    "gh200-144gb": 1830,
    "b200": 1856,
    "gb200": 2008,
    "b300": 1856,
    "mi100": 1502,
    "mi210": 1700,
    "mi250-gcd": 1700,
    "mi250x-gcd": 1700,
    "mi300a": 2100,
    "mi300x": 2100,
    "mi325x": 2100,
    "mi350x": 2200,
    "mi355x": 2400,
    "v100-sxm2": 1530,
    "v100-pcie": 1380,
    "v100s-pcie": 1597,
    "p100-pcie": 1303,
    "p100-sxm2": 1480,
    "t4": 1590,
    "l4": 2040,
    "l40": 2490,
    "l40s": 2520,
    "rtx-4090": 2520,
    "rtx-5090": 2407,
    "rtx-pro-6000-server": 2490,
    "rtx-pro-6000-workstation": 2617,
    "rx-7900-xtx": 2500,
}
#: Of fp32 and fp64, where it is higher than under the matrix units.
VECTOR_CLOCK = {
    "h100-sxm": 1980,
    "h100-94gb": 1980,
    "h200": 1980,
    "gh200-96gb": 1980,
    "gh200-144gb": 1980,
    "h100-pcie": 1755,
    "h100-nvl": 1785,
    "h200-nvl": 1785,
    "b200": 1970,
    "gb200": 2062,
    "b300": 1980,
}
ARITHMETIC = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
#: NVIDIA states it, and no clock explains it exactly.
UNEXPLAINED = {("b300", "fp64")}


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_peaks(device: Any) -> None:
    """Arithmetic peaks are units times FLOP per clock times clock."""
    per_clock = {**ARCHITECTURES[device.architecture], **PER_CLOCK.get(device.id, {})}
    for key in set(device.peak) & set(ARITHMETIC):
        if (device.id, key) in UNEXPLAINED:
            continue
        clock = CLOCK[device.id]
        if key in ("fp32", "fp64"):
            clock = VECTOR_CLOCK.get(device.id, clock)
        expected = device.multiprocessors * per_clock[key] * clock * 1e-6
        assert device.peak[key] == pytest.approx(expected, rel=0.02), key


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_figures_have_sources(device: Any) -> None:
    """Every figure has a dated source, a size where it matters, and is not far above the peak."""
    assert references().sources[device.peak_source][1].startswith("https://")
    highest = 1.25 if device.boosts else 1.0
    for key, figures in device.achieved.items():
        assert len(figures) == 1 or key == "allreduce"
        for figure in figures:
            title, url = references().sources[figure.source]
            assert re.search(r"20\d\d", title) and url.startswith("https://"), figure.source
            assert figure.kind in LIMITS
            assert bool(figure.gpus) == (key == "allreduce") == bool(figure.bytes and key == "allreduce")
            assert figure.algorithm in ("", "nvls", "ring")
            if figure.limits is not None:
                warn_below, fail_below = figure.limits
                assert 0 <= fail_below < warn_below <= 1
            peak = device.peak.get("memory" if key in ("copy", "triad") else key)
            if peak:
                assert 0.4 < figure.value / peak < highest, key


def test_keys() -> None:
    """A figure has the keys that the head of the file explains: a misspelt one would be ignored."""
    data = yaml.safe_load((Path(builder.smoke.__file__).parent / "reference.yml").read_text())
    keys = {
        "value",
        "source",
        "kind",
        "size",
        "gpus",
        "algorithm",
        "torch",
        "driver",
        "date",
        "limits",
        "note",
    }
    for device in data["devices"]:
        for figures in device["achieved"].values():
            for figure in figures if isinstance(figures, list) else [figures]:
                assert set(figure) <= keys, device["id"]
        achieved = {*ARITHMETIC, "copy", "triad", "transfer", "allreduce"}
        assert set(device["achieved"]) <= achieved and set(device["peak"]) <= {
            *ARITHMETIC,
            "memory",
            "transfer",
            "source",
        }


def test_sources_are_used() -> None:
    """Every source is the source of a figure or of a peak."""
    of_figures = {
        figure.source
        for device in references().devices
        for figures in device.achieved.values()
        for figure in figures
    }
    assert of_figures | {device.peak_source for device in references().devices} == set(references().sources)


def test_h200_memory() -> None:
    """The figure that was a GH200's is gone; rings and NVLS are two figures."""
    h200 = next(device for device in references().devices if device.id == "h200")
    assert not {"memory", "copy", "triad"} & set(h200.achieved)
    at_eight = {(f.algorithm, f.value) for f in h200.achieved["allreduce"] if f.gpus == 8}
    assert {("nvls", 482.26), ("ring", 365.6)} <= at_eight
