"""Kinds of measurement: how much the values of each kind vary, and whether one alone makes an image slower.

Every number is a fraction. They are priors, chosen from published noise because no series of runs on a GPU of
ours was at hand; ``python -m benchmarks.bench_verdict --measured REPORTS`` computes them from real reports.
Sources, by what they say:

- run to run on one GPU: "<0.3% of mean runtime" on a quiet machine (pytorch/pytorch#5799); cuBLASLt 0.46 to
  0.57 % over 20 processes (flashinfer-ai/flashinfer#4439); 1 to 2 % by time of day, because of heat (Llama 3
  report);
- GPU to GPU: "5% and higher differences on an 8-gpu node" for matrix products (ml-engineering,
  compute/accelerator); 0.04 % for copies on 8 GPUs (NVIDIA/nvbandwidth#48); 0.02 to 3.9 % for pinned
  transfers (NVIDIA/nvbandwidth#24, #15);
- host: pageable copies ±21 % (JustVugg/colibri#429), cold imports 5 to 200 times slower
  (Garden-AI/rootstock#167), files on Lustre 5 to 18 times;
- what sites tolerate: 5 to 10 % for GPUs (CSCS, LUMI, SuperBench, Azure).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What the measurements of a kind have in common."""

    name: str
    members: str
    """Its measurements, for people."""
    floor: float
    """Smaller changes never count. They occur between runs of one image."""
    run: float = 0.0
    """The least standard deviation between runs on one device that is assumed."""
    device: float = 0.0
    """The standard deviation between devices of one model (for files: between nodes) that is assumed."""
    decides: bool = True
    """A slower value of this kind is a regression even if nothing else is slower."""
    host_bound: bool = False
    """It also measures the processor, even if it runs on a GPU."""


def _host(name: str, members: str, floor: float, run: float, device: float) -> Kind:
    """A kind that depends on the host or on files so much that it never decides alone."""
    return Kind(name, members, floor, run, device, decides=False, host_bound=True)


_CPU = Kind("cpu", "everything else on a CPU", 0.15)
#: Kinds by a pattern of whole ids; the first one counts.
_ANYWHERE = {
    r"\w+\.(import_time|first_kernel|compile)|python\.start|imports|command": _host(
        "start", "imports, first kernels, the recipe's command", 0.40, 0.10, 0.12
    ),
    "dataloader": _host("files", "DataLoader", 0.40, 0.08, 0.08),
    r"checkpoint\.\w+": _host("checkpoint", "checkpoints", 0.60, 0.20, 0.20),
    r".+\.network(\..+)?": Kind("network", "collectives between nodes", 0.25, 0.08, 0.08, decides=False),
    r"again\..+": _host("again", "fractions of what was measured again on a CPU", 0.40, 0.10, 0.10),
}
#: The same for values of GPUs.
_ON_GPUS = {
    r"matmul\.\w+": Kind("matmul", "matrix products", 0.05, 0.008, 0.020),
    r"memory\.\w+": Kind("memory", "copy and triad", 0.04, 0.004, 0.006),
    r"transfer\.\w+_pinned": Kind("pinned", "transfers from and to pinned memory", 0.05, 0.008, 0.015),
    r"transfer\.\w+_pageable": _host("pageable", "transfers of pageable memory", 0.40, 0.08, 0.10),
    r"conv\.training|attention": Kind("layers", "convolutions, attention", 0.06, 0.012, 0.020),
    "training": Kind("training", "training steps", 0.25, 0.05, 0.06, host_bound=True),
    r".*(launch|latency).*": Kind("latency", "launches, small messages", 0.15, 0.03, 0.05, host_bound=True),
    ".*": Kind("gpu", "collectives of a node, copies between GPUs, everything else", 0.10, 0.02, 0.02),
}
#: Products of tensor cores (matrix cores). On one GPU the same clock and the same power limit slow them all.
PRODUCTS = ("matmul.tf32", "matmul.fp16", "matmul.bf16", "matmul.fp8")
#: A product that falls by more than this against the others on its GPU fell because of the image.
CONTRAST = 0.07
#: So many products are needed: with two it is not known which one fell.
CONTRAST_OF = 3


@functools.cache
def kind_of(name: str, *, on_gpu: bool) -> Kind:
    """The kind of a measurement.

    Args:
        name: the id of the measurement.
        on_gpu: whether the value is that of a GPU.
    """
    patterns = {**_ANYWHERE, **_ON_GPUS} if on_gpu else _ANYWHERE
    return next((kind for pattern, kind in patterns.items() if re.fullmatch(pattern, name)), _CPU)


def kinds() -> list[Kind]:
    """All kinds, GPUs first."""
    return [*_ON_GPUS.values(), *_ANYWHERE.values(), _CPU]
