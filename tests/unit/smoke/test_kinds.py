"""Kinds of measurement: each id belongs to one, and has the limits of grading.md."""

from __future__ import annotations

import pytest

from builder.bench.measurements import MEASUREMENTS
from builder.smoke.kinds import PRODUCTS, kind_of, kinds


@pytest.mark.parametrize(
    ("name", "on_gpu", "kind"),
    [
        ("matmul.bf16", True, "matmul"),
        ("matmul.fp32", False, "cpu"),
        ("memory.triad", True, "memory"),
        ("memory.copy", False, "cpu"),
        ("transfer.h2d_pinned", True, "pinned"),
        ("transfer.d2h_pageable", True, "pageable"),
        ("conv.training", True, "layers"),
        ("attention", True, "layers"),
        ("training", True, "training"),
        ("training", False, "cpu"),
        ("launch", True, "latency"),
        ("conv.first_kernel", True, "start"),
        ("again.matmul", False, "again"),
        ("allgather.node", True, "gpu"),
        ("reducescatter.node", True, "gpu"),
        ("peer.copy", True, "gpu"),
        ("matmul.fp8", True, "matmul"),
        ("matmul.fp64", True, "matmul"),
        ("torch.import_time", False, "start"),
        ("torch.first_kernel", True, "start"),
        ("jax.first_kernel", True, "start"),
        ("python.start", False, "start"),
        ("command", False, "start"),
        ("dataloader", False, "files"),
        ("checkpoint.write", False, "checkpoint"),
        ("allreduce.node", True, "gpu"),
        ("allreduce.network", True, "network"),
        ("allreduce.network", False, "network"),
        ("something.new", True, "gpu"),
    ],
)
def test_kind(name: str, on_gpu: bool, kind: str) -> None:
    assert kind_of(name, on_gpu=on_gpu).name == kind


def test_floors_exceed_usual_noise() -> None:
    """On one device the floor decides, or nearly: three standard deviations of two runs are near it."""
    for kind in kinds():
        assert 3 * 2**0.5 * kind.run < 1.5 * kind.floor
        assert kind.device == 0 or kind.device >= kind.run


def test_files_and_hosts_never_decide() -> None:
    """What depends on files or on the host is no regression by itself."""
    names = {kind.name for kind in kinds() if not kind.decides}
    assert names == {"start", "files", "checkpoint", "network", "pageable", "again"}


def test_products_are_measured() -> None:
    """The products of the contrast rule are ids of measurements."""
    known = {measurement.id for measurement in MEASUREMENTS} | {"matmul.fp8"}
    assert set(PRODUCTS) <= known
