"""Probes of the processor: cores, their distance to the GPU, threads."""

from __future__ import annotations

import os

import pytest

from builder.bench.core import Place
from builder.bench.machine import processor
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, run
from tests.unit.bench.conftest import WriteFile


def use_cores(monkeypatch: pytest.MonkeyPatch, cores: set[int], total: int) -> None:
    monkeypatch.setattr(processor, "affinity", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: total)


def test_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core of many fails; a machine that has only one is fine."""
    use_cores(monkeypatch, {5}, 128)
    assert ask("cpu.affinity", expect="nvidia").status == "fail"
    assert ask("cpu.affinity", expect="none").status == "fail"
    use_cores(monkeypatch, {0}, 1)
    assert ask("cpu.affinity", expect="nvidia").status == "pass"


def test_affinity_of_the_process() -> None:
    core = min(os.sched_getaffinity(0))
    result = run("--expect", "none", python=["-S"], start=lambda: os.sched_setaffinity(0, {core}))
    assert result.probe("cpu.affinity")["seen"].startswith("1 of ")
    assert result.probe("cpu.affinity")["status"] == ("fail" if (os.cpu_count() or 1) > 1 else "pass")


def test_hardware_threads(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two hardware threads of a core are one core."""
    for core in (3, 67):
        root(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", "3,67")
    use_cores(monkeypatch, {3, 67}, 128)
    found = ask("cpu.affinity")
    assert found.status == "fail" and "threads of one core" in found.advice
    use_cores(monkeypatch, {3, 67, 4, 68}, 128)
    assert ask("cpu.affinity").status == "pass"


def test_quota_below_one_core(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, {0, 1}, 2)
    root("/sys/fs/cgroup/cpu.max", "50000 100000")
    found = ask("cpu.affinity")
    assert found.status == "warn" and "a quota of 0.5" in found.seen
    root("/sys/fs/cgroup/cpu.max", "max 100000")
    assert "quota" not in ask("cpu.affinity").seen


def test_rank_far_from_its_gpu(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    root("/sys/bus/pci/devices/0000:3b:00.0/local_cpulist", "48-63,176-191\n")
    place = Place(0, 4, 0, 4)
    monkeypatch.setattr(processor, "affinity", lambda: set(range(8)))
    found = ask("gpu.distance", fake_torch("CUDA"), place=place)
    assert found.status == "warn" and "cores 0-7; near: GPU 0 48-63,176-191" in found.seen
    assert "48-63,176-191" in found.advice
    monkeypatch.setattr(processor, "affinity", lambda: set(range(48, 56)))
    assert ask("gpu.distance", fake_torch("CUDA"), place=place).status == "pass"
    assert ask("gpu.distance", fake_torch("CPU")).status == "skip"


@pytest.mark.parametrize(
    ("value", "ranks", "status"),
    [
        ("8", 1, "pass"),
        ("16", 1, "warn"),
        ("many", 1, "warn"),
        ("0", 1, "warn"),
        ("1", 1, "warn"),
        ("1", 8, "pass"),
        ("4", 8, "warn"),
        ("4,2", 1, "pass"),
        ("", 1, "pass"),
    ],
)
def test_omp_num_threads(value: str, ranks: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, set(range(8)), 8)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    found = ask("cpu.threads", expect="none", place=Place(0, ranks, 0, ranks))
    assert found.status == status, found
    assert not value or f"OMP_NUM_THREADS={value}" in found.seen
