"""Copies between the GPUs of a node: the matrix, and which link counts as slow."""

from __future__ import annotations

from typing import Any

import pytest

from builder.bench.core import Item
from builder.bench.examine import perform
from builder.bench.measurements import p2p
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run

NVLINK, PCIE = 250.0, 20.0


def measure(
    monkeypatch: pytest.MonkeyPatch,
    rates: list[list[float]],
    name: str = "NVIDIA A100-SXM4-40GB",
    wrong: int = 0,
    shared: frozenset[int] = frozenset(),
) -> Item:
    """The result for GPUs with a table of rates, from each to each."""
    torch = fake_torch("HIP" if "AMD" in name else "CUDA", devices=len(rates))
    torch.cuda.get_device_name = lambda index: name
    torch.cuda.can_device_access_peer = lambda target, source: True
    monkeypatch.setattr(p2p, "_buffer", lambda run, index: None)

    def rate(run: Any, buffers: Any, source: int, target: int) -> Any:
        return [rates[source][target]] * 5, wrong

    monkeypatch.setattr(p2p, "_measure", rate)
    run = make_run(torch, expect="nvidia")
    run.shared_gpus |= shared
    return perform("peer.copy", lambda: p2p.measure_pairs(run))


def table(gpus: int, rate: float, **others: float) -> list[list[float]]:
    """The same rate for all pairs, except for others: ``_0_1=12.0`` is from GPU 0 to GPU 1."""
    rates = [[rate] * gpus for _ in range(gpus)]
    for pair, value in others.items():
        source, target = map(int, pair.strip("_").split("_"))
        rates[source][target] = value
    return rates


def test_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    item = measure(monkeypatch, table(4, NVLINK))
    assert item["status"] == "pass" and item["median_gb_per_s"] == NVLINK and item["gpus"] == 4
    assert len(item["pairs"]) == 12
    assert item["pairs"][0] == {"from": 0, "to": 1, "gb_per_s": NVLINK, "direct": True}


def test_one_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that has lost one of its four lanes is found where all pairs have the same link."""
    item = measure(monkeypatch, table(4, NVLINK, _2_3=0.75 * NVLINK))
    assert item["status"] == "warn" and "GPU 2 to 3: 188 of 250 GB/s" in item["seen"]
    assert item["median_gb_per_s"] == NVLINK and "nvlink" in item["advice"]
    used = measure(monkeypatch, table(4, NVLINK, _2_3=0.75 * NVLINK), shared=frozenset({2}))
    assert used["status"] == "pass", "another program copies, too (gpu.idle)"


def test_pairs_that_differ_by_design(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of an MI250X share a module; PCIe cards sit on two sockets. Neither is a fault."""
    near = [[NVLINK if a // 2 == b // 2 else 50.0 for b in range(8)] for a in range(8)]
    assert measure(monkeypatch, near, "AMD Instinct MI250X")["status"] == "pass"
    sockets = [[25.0 if a // 2 == b // 2 else 10.0 for b in range(4)] for a in range(4)]
    assert measure(monkeypatch, sockets, "NVIDIA A40")["status"] == "pass"
    assert measure(monkeypatch, [[0.0, 20.0], [9.0, 0.0]], "NVIDIA A40")["status"] == "pass"


def test_slow_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [[5.0 if 3 in (a, b) else 20.0 for b in range(8)] for a in range(8)]
    item = measure(monkeypatch, rates, "NVIDIA A40")
    assert item["status"] == "warn" and item["seen"].count("GPU") == 1 and "GPU 3 with all" in item["seen"]


def test_wrong_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    item = measure(monkeypatch, table(2, PCIE), wrong=1)
    assert item["status"] == "fail" and "2 words" in item["seen"]


def test_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(monkeypatch, [[0.0]])["status"] == "skip"


def test_exclusive_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """In compute mode EXCLUSIVE_PROCESS the other ranks hold their GPUs."""

    def busy(run: Any) -> Any:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    torch = fake_torch("CUDA", devices=2)
    monkeypatch.setattr(p2p, "_buffer", lambda run, index: busy(run))
    item = perform("peer.copy", lambda: p2p.measure_pairs(make_run(torch, expect="nvidia")))
    assert item["status"] == "skip" and "exclusively" in item["seen"]
