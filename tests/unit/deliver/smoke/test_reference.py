"""reference.yml: its entries, its figures and their sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import builder.deliver.smoke
from builder.deliver.smoke.limits import LIMITS
from builder.deliver.smoke.reference import references
from tests.support.reports import A100_40, A100_80, GIB, MI250X, STRANGE


@pytest.mark.parametrize(
    ("facts", "id"),
    [
        (A100_40, "a100-sxm4-40gb"),
        (A100_80, "a100-sxm4-80gb"),
        (MI250X, "mi250x-gcd"),
        ({"name": "A100-SXM4-40GB", "memory_bytes": 40 * GIB}, "a100-sxm4-40gb"),
        ({"name": "NVIDIA H100 PCIe", "memory_bytes": 79 * GIB}, "h100-pcie"),
        ({"name": "AMD Instinct MI100", "memory_bytes": 32 * GIB}, "mi100"),
        ({"name": "Arcturus GL-XL [AMD Instinct MI100]", "memory_bytes": 32 * GIB}, "mi100"),
        # one name, two GPUs
        ({**MI250X, "name": "AMD Instinct MI250X / MI250"}, "mi250x-gcd"),
        ({**MI250X, "name": "AMD Instinct MI250X / MI250", "multiprocessors": 104}, "mi250-gcd"),
        ({"name": "NVIDIA H100", "memory_bytes": 65247 << 20}, "h100-64gb"),
        ({"name": "NVIDIA H100", "memory_bytes": 94 * GIB}, "h100-94gb"),
        ({"name": "AMD Instinct MI300X", "memory_bytes": 192 * GIB}, "mi300x"),
        ({"name": "Tesla T4", "memory_bytes": 15 * GIB}, "t4"),
        # sizes as torch or nvidia-smi report them, in MiB
        ({"name": "NVIDIA A10", "memory_bytes": 22 * GIB}, "a10"),
        ({"name": "NVIDIA GH200 120GB", "memory_bytes": 97871 << 20}, "gh200-96gb"),
        ({"name": "NVIDIA GH200 480GB", "memory_bytes": 95 * GIB}, "gh200-96gb"),
        ({"name": "NVIDIA B200", "memory_bytes": 182642 << 20, "multiprocessors": 148}, "b200"),
        ({"name": "NVIDIA GeForce RTX 4090", "memory_bytes": 24563 << 20}, "rtx-4090"),
        ({"name": "AMD Instinct Mi325X VF", "memory_bytes": 256 * GIB}, "mi325x"),
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
        {**A100_40, "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"},  # no slice was measured publicly
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
ARITHMETIC = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_peaks(device: Any) -> None:
    """The peaks are multiples of one clock of the matrix units, and of one of fp32 and fp64."""
    per_clock = {**ARCHITECTURES[device.architecture], **PER_CLOCK.get(device.id, {})}
    vector = ("fp32",) if device.id == "b300" else ("fp64", "fp32")  # no clock explains its fp64 exactly
    for keys in (vector, ("tf32", "bf16", "fp16", "fp8")):
        known = [key for key in keys if key in device.peak]
        clocks = [1e6 * device.peak[key] / per_clock[key] / (device.multiprocessors or 1) for key in known]
        assert not clocks or max(clocks) <= 1.03 * min(clocks)
        assert not device.multiprocessors or all(1200 < clock < 2700 for clock in clocks)


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_figures_have_sources(device: Any) -> None:
    """Every figure has a dated source, a size where it matters, and is not far above the peak."""
    assert references().sources[device.peak_source].url.startswith("https://")
    highest = 1.25 if device.boosts else 1.0
    for key, figures in device.achieved.items():
        assert len(figures) == 1 or key == "allreduce"
        for figure in figures:
            source = references().sources[figure.source]
            assert re.search(r"20\d\d", source.title), figure.source
            assert source.url.startswith("https://") != source.title.startswith("builder on"), figure.source
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
    data = yaml.safe_load((Path(builder.deliver.smoke.__file__).parent / "reference.yml").read_text())
    keys = set(
        ["value", "source", "kind", "size", "gpus", "algorithm", "torch", "driver", "date", "limits", "note"]
    )
    for device in data["devices"]:
        for figures in device["achieved"].values():
            for figure in figures:
                assert set(figure) <= keys, device["id"]
        achieved = {*ARITHMETIC, "copy", "triad", "transfer", "allreduce"}
        assert set(device["achieved"]) <= achieved
        assert set(device["peak"]) <= {*ARITHMETIC, "memory", "transfer"}


def test_sources_are_used() -> None:
    """Every source is the source of a figure or of a peak."""
    of_figures = {
        figure.source
        for device in references().devices
        for figures in device.achieved.values()
        for figure in figures
    }
    assert of_figures | {device.peak_source for device in references().devices} == set(references().sources)


def test_h200() -> None:
    """Its memory has builder's own figure, not a GH200's; rings and NVLS are two figures."""
    h200 = next(device for device in references().devices if device.id == "h200")
    assert {h200.achieved[key][0].source for key in ("copy", "triad")} == {"builder-h200"}
    at_eight = {(f.algorithm, f.value) for f in h200.achieved["allreduce"] if f.gpus == 8}
    assert {("nvls", 482.26), ("ring", 365.6)} <= at_eight
