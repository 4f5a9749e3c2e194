"""Comparing two images: a real regression is found and named with its packages, noise is not."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from builder.smoke.compare import FLOORS, Comparison, ProbeChange, compare
from builder.smoke.reports import StoredReport
from tests.support.reports import A100_40, MI250X, a100, cpu, measured, ranked, report

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def stored(value: dict[str, Any], source: str = "here") -> StoredReport:
    return StoredReport(value, source)


def runs(
    count: int, scale: dict[str, float] | None = None, *, digest: str = OLD, make: Any = a100, **more: Any
) -> list[StoredReport]:
    """Several runs of an image, each with its own noise and drift."""
    rng = random.Random(f"{digest} {more}")
    out = []
    for n in range(count):
        drift = {k: v * (1 + rng.gauss(0, 0.006)) for k, v in (scale or {}).items()}
        out.append(
            stored(make(drift, seed=n, digest=digest, started=f"2026-11-2{n}T08:00:00Z", **more), f"run {n}")
        )
    return out


def faster(comparison: Comparison) -> list[str]:
    return [change.id for change in comparison.changes if change.outcome == "faster"]


PACKAGES = {
    "torch (pip)": "2.12.1",
    "nvidia-cublas-cu12 (pip)": "12.8.4.1",
    "zlib": "1.3.1 h4",
    "numpy": "2.3.0 py311_0",
}
PLANTED = {**PACKAGES, "nvidia-cublas-cu12 (pip)": "12.9.0.2", "zlib": "1.3.2 h1", "rich": "14.0 pyh_0"}


def test_regression() -> None:
    """A regression is named with the packages that changed, likely causes first."""
    old, new = runs(1, {}, packages=PACKAGES), runs(1, {"matmul.bf16": 0.88}, digest=NEW, packages=PLANTED)
    found = compare(new, old)
    (slower,) = found.regressions
    assert (
        slower.id == "matmul.bf16"
        and slower.ratio == pytest.approx(0.88, abs=0.02)
        and slower.limit == FLOORS["gpu"]
    )
    assert "248 TFLOP/s -> 2" in str(slower) and "% slower (limit 5%)" in str(slower) and not faster(found)
    assert found.packages is not None
    assert [str(p) for p in found.packages] == [
        "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2",
        "rich (none) -> 14.0 pyh_0",
        "zlib 1.3.1 h4 -> 1.3.2 h1",
    ]
    assert [p.likely for p in found.packages] == [True, False, False]
    out = found.to_json()
    assert out["regressions"] == ["matmul.bf16"] and out["packages"][0]["name"] == "nvidia-cublas-cu12 (pip)"
    json.dumps(out, allow_nan=False)


def test_improvement() -> None:
    """A faster measurement is not a regression."""
    found = compare(runs(1, {"memory.copy": 1.2}, digest=NEW), runs(1))
    assert faster(found) == ["memory.copy"] and not found.regressions


@pytest.mark.parametrize("seed", range(20))
def test_no_false_alarm(seed: int) -> None:
    """Drift of 0.6 % between runs and noise of 3 % within a run are not a regression."""
    names = (
        "matmul.fp32",
        "matmul.tf32",
        "matmul.fp16",
        "matmul.bf16",
        "memory.copy",
        "memory.triad",
        "transfer.h2d_pinned",
    )
    same = dict.fromkeys(names, 1.0)
    old = runs(3, same, noise=0.03, target=f"old{seed}")
    new = runs(3, same, noise=0.03, digest=NEW, target=f"new{seed}")
    assert not compare(new, old).regressions and not compare(new[:1], old[:1]).regressions


@pytest.mark.parametrize("seed", range(20))
def test_small_regression(seed: int) -> None:
    """Three runs of each image are enough to find a loss of a tenth."""
    old = runs(3, {"matmul.bf16": 1.0}, noise=0.02, target=f"old{seed}")
    new = runs(3, {"matmul.bf16": 0.90}, noise=0.02, digest=NEW, target=f"new{seed}")
    assert [c.id for c in compare(new, old).regressions] == ["matmul.bf16"]


def test_noise_raises_limit() -> None:
    """Noise within a run raises the limit."""
    quiet = compare(runs(1, {"memory.copy": 0.90}, digest=NEW), runs(1))
    noisy = compare(runs(1, {"memory.copy": 0.90}, digest=NEW, noise=0.25), runs(1, noise=0.25))
    assert [c.id for c in quiet.regressions] == ["memory.copy"] and not noisy.regressions
    assert next(c.limit for c in noisy.changes if c.id == "memory.copy") > 0.15


def test_drift_raises_limit() -> None:
    """Differences between the runs of an image raise the limit."""

    def spread(values: list[float], digest: str) -> list[StoredReport]:
        return [stored(a100({"matmul.fp16": v}, digest=digest, seed=i)) for i, v in enumerate(values)]

    found = compare(spread([0.9, 0.8, 0.95], NEW), spread([1.0, 0.85, 1.1], OLD))
    change = next(c for c in found.changes if c.id == "matmul.fp16")
    assert change.outcome == "same" and change.limit > 0.2 and change.runs == (3, 3)


def test_times() -> None:
    """Longer times are worse; measurements that use files have a higher floor."""

    def imported(seconds: float, digest: str) -> StoredReport:
        measurements = [
            measured("torch.import_time", seconds, "s", device="", noise=0.01),
            measured("training", seconds, "ms"),
        ]
        return stored(report(measurements, devices=[A100_40], digest=digest))

    found = compare([imported(1.2, NEW)], [imported(1.0, OLD)])
    assert [(c.id, round(c.ratio, 2)) for c in found.regressions] == [("training", 0.83)]
    assert {c.id for c in compare([imported(2.0, NEW)], [imported(1.0, OLD)]).regressions} == {
        "torch.import_time",
        "training",
    }


def test_other_machine() -> None:
    """Values of another machine are listed and not evaluated."""
    found = compare([stored(a100({"matmul.fp32": 0.5}, digest=NEW, devices=[MI250X]))], runs(1))
    assert {c.outcome for c in found.changes} == {"other"} and not found.regressions
    assert "on another machine: before NVIDIA A100-SXM4-40GB, now AMD Instinct MI250X" in str(
        found.changes[0]
    )
    slow = [stored(cpu({"matmul.fp32": 0.5}, cores=4))]
    assert {c.outcome for c in compare(slow, [stored(cpu(cores=8))]).changes} == {"other"}
    assert [c.id for c in compare([stored(cpu({"matmul.fp32": 0.5}))], [stored(cpu())]).regressions] == [
        "matmul.fp32"
    ]


def test_busy_machine() -> None:
    """Values of a busy processor are listed and not evaluated."""
    busy = (("torch.import", "pass"), ("machine.steady", "warn"))
    found = compare([stored(cpu({"matmul.fp32": 0.3}, probes=busy))], [stored(cpu())])
    assert not found.regressions and {c.outcome for c in found.changes} == {"busy"}
    assert any("other processes used the machine" in n and "matmul.fp32" in n for n in found.notes)
    assert "on a busy machine" in str(found.changes[0])
    # If one run was not busy, only that run is used.
    found = compare(
        [stored(cpu({"matmul.fp32": 0.3}, probes=busy)), stored(cpu({"matmul.fp32": 0.7}))], [stored(cpu())]
    )
    (slower,) = found.regressions
    assert slower.id == "matmul.fp32" and slower.ratio == pytest.approx(0.7, abs=0.03)
    # GPUs are not affected.
    assert compare([stored(a100({"matmul.bf16": 0.5}, probes=busy))], runs(1)).regressions
    lost = cpu({"matmul.fp32": 0.3})
    lost["measurements"][1]["lost_fraction"] = 0.5
    found = compare([stored(lost)], [stored(cpu())])
    assert [c.id for c in found.changes if c.outcome == "busy"] == ["matmul.fp32"] and not found.regressions


def test_devices() -> None:
    """Each device is compared with itself."""

    def four(values: list[float], digest: str) -> StoredReport:
        devices = [{**A100_40, "rank": i} for i in range(4)]
        return stored(report([ranked("matmul.bf16", values)], devices=devices, ranks=4, digest=digest))

    found = compare([four([250e3, 248e3, 180e3, 249e3], NEW)], [four([249e3, 248e3, 250e3, 247e3], OLD)])
    (slower,) = found.regressions
    assert slower.device == "rank 2" and "(rank 2)" in str(slower)


def test_missing_measurement() -> None:
    """A wrong result is not compared; the notes name what is missing."""
    new = a100({"matmul.bf16": 0.1}, digest=NEW, verdict="fail")
    next(m for m in new["measurements"] if m["id"] == "matmul.bf16")["status"] = "fail"
    found = compare([stored(new)], runs(1))
    assert (
        "matmul.bf16" not in {c.id for c in found.changes}
        and "only measured before: matmul.bf16" in found.notes
    )


def test_worse_probes() -> None:
    """Probes that got worse are listed."""
    new = a100(
        digest=NEW,
        verdict="warn",
        probes=(("torch.import", "pass"), ("torch.build", "warn"), ("memory.shm", "warn")),
    )
    assert compare([stored(new)], runs(1)).probes == (ProbeChange("torch.build", "pass", "warn"),)


def test_unknown_packages() -> None:
    """Without packages there is a note, unless they come from an SBOM."""
    found = compare(runs(1, digest=NEW, packages=PLANTED), runs(1))
    assert found.packages is None and any("older image does not list its packages" in n for n in found.notes)
    found = compare(runs(1, digest=NEW, packages=PLANTED), runs(1), old_packages=PACKAGES)
    assert found.packages is not None and len(found.packages) == 3


def test_inputs_are_unchanged() -> None:
    old, new = runs(2), runs(2, digest=NEW)
    before = copy.deepcopy([k.report for k in (*old, *new)])
    compare(new, old)
    assert [k.report for k in (*old, *new)] == before
