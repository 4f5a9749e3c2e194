"""Comparing two images: a real regression is found and named with its packages, noise is not."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from benchmarks.bench_verdict import Case, simulate
from benchmarks.fleet import ASSUMED, Device
from benchmarks.fleet import report as fleet_report
from builder.smoke.compare import Comparison, ProbeChange, compare
from builder.smoke.reports import StoredReport
from tests.support.reports import A100_40, MI250X, cpu, measured, ranked, report
from tests.support.reports import a100 as a100_report

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


#: The same GPU in all reports that name no other one.
GPU = {**A100_40, "uuid": "GPU-1", "driver": "580.65", "power_limit_w": 400}


def a100(scale: dict[str, float] | None = None, **more: Any) -> dict[str, Any]:
    more.setdefault("devices", [GPU])
    return a100_report(scale, **more)


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
        slower.id == "matmul.bf16" and slower.ratio == pytest.approx(0.88, abs=0.02) and slower.limit == 0.05
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
    """Longer times are worse; what depends on files does not count alone."""

    def imported(start: float, step: float, digest: str) -> StoredReport:
        measurements = [
            measured("torch.import_time", start, "s", device="", noise=0.01),
            measured("training", step, "ms"),
        ]
        return stored(report(measurements, devices=[GPU], digest=digest))

    def outcomes(start: float, step: float) -> dict[str, str]:
        found = compare([imported(start, step, NEW)], [imported(1.0, 1.0, OLD)])
        return {c.id: c.outcome for c in found.changes}

    assert outcomes(1.2, 1.2) == {"torch.import_time": "same", "training": "same"}
    assert outcomes(2.0, 1.0) == {"torch.import_time": "host", "training": "same"}
    assert outcomes(2.0, 1.4) == {"torch.import_time": "slower", "training": "slower"}
    found = compare([imported(2.0, 1.0, NEW)], [imported(1.0, 1.0, OLD)])
    assert not found.regressions and "not counted, because it depends on the host" in str(found.changes[0])


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
    assert any("not evaluated: other processes used" in n and "matmul.fp32" in n for n in found.notes)
    assert "not evaluated: other processes used the processor" in str(found.changes[0])
    # If one run was not busy, only that run is used.
    found = compare(
        [stored(cpu({"matmul.fp32": 0.3}, probes=busy)), stored(cpu({"matmul.fp32": 0.7}))], [stored(cpu())]
    )
    (slower,) = found.regressions
    assert slower.id == "matmul.fp32" and slower.ratio == pytest.approx(0.7, abs=0.03)
    # Figures of GPUs are not affected.
    assert compare([stored(a100({"matmul.bf16": 0.5}, probes=busy))], runs(1)).regressions
    lost = cpu({"matmul.fp32": 0.3})
    lost["measurements"][1]["lost_fraction"] = 0.5
    found = compare([stored(lost)], [stored(cpu())])
    assert [c.id for c in found.changes if c.outcome == "busy"] == ["matmul.fp32"] and not found.regressions


def four(values: list[float], digest: str, node: str = "") -> StoredReport:
    devices = [{**A100_40, "rank": i, **({"uuid": f"{node}-{i}"} if node else {})} for i in range(4)]
    return stored(report([ranked("matmul.bf16", values)], devices=devices, ranks=4, digest=digest))


def test_devices() -> None:
    """Each device is compared with itself."""
    found = compare(
        [four([250e3, 248e3, 180e3, 249e3], NEW, "n1")], [four([249e3, 248e3, 250e3, 247e3], OLD, "n1")]
    )
    (slower,) = found.regressions
    assert slower.device == "rank 2" and "(rank 2)" in str(slower)


def test_size_of_each_rank() -> None:
    """A GPU that had time for small products only is not compared with larger ones."""
    old, new = four([250e3] * 4, OLD, "n1"), four([250e3, 250e3, 90e3, 250e3], NEW, "n1")
    assert compare([new], [old]).regressions
    for run, small in ((old, 8192), (new, 2048)):
        for rank in run.report["measurements"][0]["ranks"]:
            rank["size"] = small if rank["rank"] == 2 else 8192
    found = compare([new], [old])
    assert not found.regressions and {c.device for c in found.changes if c.outcome == "other"} == {"rank 2"}


@pytest.mark.parametrize("node", ["n2", ""])
def test_single_gpu_of_another_node(node: str) -> None:
    """An image slows all GPUs of a node; a single slow one is not the image's fault."""
    old = [four([249e3, 248e3, 250e3, 247e3], OLD, "n1")]
    found = compare([four([250e3, 248e3, 180e3, 249e3], NEW, node)], old)
    assert not found.regressions
    assert any("slower on single GPUs of another node" in note for note in found.notes)
    found = compare([four([220e3, 218e3, 180e3, 221e3], NEW, node)], old)
    assert {c.device for c in found.regressions} == {f"rank {i}" for i in range(4)}


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


# One test for each rule, on a simulated fleet: 22 figures per report, with the noise of benchmarks/fleet.py.


def share(case: Case, change: str, comparisons: int = 60) -> float:
    """The share of simulated comparisons that end with a regression."""
    cell = simulate(case, change, ASSUMED, comparisons)
    return cell.slower / comparisons


@pytest.mark.parametrize("runs", [1, 3])
def test_same_gpu(runs: int) -> None:
    """On one GPU nothing is reported without a change, and 7 % always; expected 0 and 100 %."""
    assert share(Case(old_runs=runs), "none") == 0
    assert share(Case(old_runs=runs), "all") == 1


@pytest.mark.parametrize(("runs", "gpus"), [(1, 1), (3, 3), (3, 1)])
def test_fleet(runs: int, gpus: int) -> None:
    """Differences between GPUs are not regressions (expected 1 %), and bf16 -10 % is one (expected 94 %)."""
    case = Case(old_runs=runs, old_gpus=gpus)
    assert share(case, "none") < 0.08
    assert share(case, "bf16") > 0.78


def test_usual_noise() -> None:
    """One quiet run is not taken as exact: the noise between runs is that of its kind."""
    steps = [stored(report([measured("training", v, "ms", noise=1e-4)], devices=[GPU])) for v in (1, 1.25)]
    change = compare(steps[1:], steps[:1]).changes[0]
    assert change.limit == 0.25 and change.outcome == "same"
    layers = [stored(report([measured("attention", v, noise=1e-4)], devices=[GPU])) for v in (100, 93)]
    elsewhere = stored(report([measured("attention", 93, noise=1e-4)], devices=[{**GPU, "uuid": "GPU-2"}]))
    assert compare(layers[1:], layers[:1]).changes[0].limit == pytest.approx(0.06)
    assert compare([elsewhere], layers[:1]).changes[0].limit == pytest.approx(0.0990, abs=0.0005)


def test_host_figures_never_decide() -> None:
    """A cold cache makes starts many times slower, without an exit code of 11."""
    slow = {"torch.import_time": 0.1, "transfer.h2d_pageable": 0.3, "checkpoint.write": 0.05}
    rng = random.Random(7)
    here = Device(rng, ASSUMED)
    found = compare([fleet_report([here], rng, ASSUMED, slow)], [fleet_report([here], rng, ASSUMED, {})])
    assert {c.id for c in found.changes if c.outcome == "host"} == set(slow) and not found.regressions


def test_gpu_identity() -> None:
    """The text names another GPU, power limit and driver; a report without a uuid may be of another GPU."""
    other = {**GPU, "uuid": "GPU-2", "driver": "550.54", "power_limit_w": 300}
    old = [stored(a100(devices=[other]))]
    found = compare([stored(a100({"matmul.bf16": 0.7}, digest=NEW))], old)
    (slower,) = found.regressions
    assert "another GPU of the same kind; power limit 300 W -> 400 W; driver 550.54 -> 580.65" in str(slower)
    assert "the cause is" not in str(slower)  # another power limit slows products differently
    assert not slower.same_device and slower.limit == pytest.approx(0.0914, abs=0.001)
    assert slower.to_json()["differences"][0] == "another GPU of the same kind"
    assert any("1 old run on 1 GPU; builder smoke --ab OLD NEW" in note for note in found.notes)
    old = [stored(a100(devices=[{**other, "power_limit_w": 400}]))]
    (slower,) = compare([stored(a100({"matmul.bf16": 0.7}, digest=NEW))], old).regressions
    assert "the cause is the image or the driver, not the GPU" in str(slower)
    # the report of an older builder
    found = compare([stored(a100({"matmul.bf16": 0.7}, digest=NEW))], [stored(a100(devices=[A100_40]))])
    (slower,) = found.regressions
    assert "perhaps another GPU of the same kind" in str(slower)
    # the same GPU
    found = compare([stored(a100({"matmul.bf16": 0.7}, digest=NEW))], runs(3))
    assert found.regressions[0].same_device and not any("--ab" in note for note in found.notes)


def test_contrast() -> None:
    """On another GPU a product that falls against the others counts, below its limit; not if all fall."""
    elsewhere = [{**GPU, "uuid": "GPU-2"}]
    found = compare(
        [stored(a100({"matmul.bf16": 0.915}, digest=NEW, devices=elsewhere, noise=0.001))], runs(1)
    )
    (slower,) = found.regressions
    assert slower.id == "matmul.bf16" and slower.ratio > 1 - slower.limit
    assert "against its GPU's other products, so the cause is the image, not the GPU" in str(slower)
    products = dict.fromkeys(("matmul.tf32", "matmul.fp16", "matmul.bf16"), 0.93)
    found = compare([stored(a100(products, digest=NEW, devices=elsewhere, noise=0.001))], runs(1))
    assert not found.regressions
    assert any("by less than runs and GPUs differ: matmul.bf16" in note for note in found.notes)
    # A product that became faster makes no other one slower.
    faster_fp16 = {"matmul.fp16": 1.5, "matmul.tf32": 1.5}
    found = compare([stored(a100(faster_fp16, digest=NEW, devices=elsewhere))], runs(1))
    assert not found.regressions


@pytest.mark.parametrize("probe", ["gpu.idle", "gpu.clocks"])
def test_disturbed_gpu(probe: str) -> None:
    """Figures of a GPU that others used, or that was slowed down, are not evaluated."""
    probes = (("torch.import", "pass"), (probe, "warn"))
    busy = stored(a100({"matmul.bf16": 0.5}, digest=NEW, verdict="warn", probes=probes))
    found = compare([busy], runs(1))
    assert {c.outcome for c in found.changes} == {"busy"} and not found.regressions
    found = compare([busy, stored(a100(digest=NEW))], runs(1))
    assert {c.outcome for c in found.changes} == {"same"}


def test_throttled() -> None:
    """A figure that heat slowed down is not evaluated; a power cap is usual."""

    def throttled(*reasons: str) -> list[StoredReport]:
        made = a100({"matmul.bf16": 0.5}, digest=NEW)
        next(m for m in made["measurements"] if m["id"] == "matmul.bf16")["throttled"] = list(reasons)
        return [stored(made)]

    (busy,) = (c for c in compare(throttled("power cap", "heat"), runs(1)).changes if c.outcome == "busy")
    assert busy.id == "matmul.bf16" and str(busy).endswith("not evaluated: throttled by heat")
    assert [c.id for c in compare(throttled("power cap"), runs(1)).regressions] == ["matmul.bf16"]


def test_lost_time_on_gpu() -> None:
    made = a100({"matmul.bf16": 0.5}, digest=NEW)
    next(m for m in made["measurements"] if m["id"] == "matmul.bf16")["lost_fraction"] = 0.5
    assert not compare([stored(made)], runs(1)).regressions


def test_other_method() -> None:
    """Figures of a GPU before it was warm, and of another size, are not compared with today's."""
    new = a100({"matmul.bf16": 0.5}, digest=NEW)
    product = next(m for m in new["measurements"] if m["id"] == "matmul.bf16")
    product["sustained_gflop_per_s"] = product["median_gflop_per_s"]
    (other,) = (c for c in compare([stored(new)], runs(1)).changes if c.outcome == "other")
    assert other.id == "matmul.bf16" and "in another way by another version of builder" in str(other)

    def sized(size: int, speed: float, digest: str) -> StoredReport:
        return stored(report([measured("matmul.bf16", speed, size=size)], devices=[GPU], digest=digest))

    assert not compare([sized(2048, 120e3, NEW)], [sized(8192, 240e3, OLD)]).regressions
    assert compare([sized(8192, 120e3, NEW)], [sized(16384, 240e3, OLD)]).regressions

    def attended(flop: float, speed: float, digest: str) -> StoredReport:
        return stored(report([measured("attention", speed, flop=flop)], devices=[GPU], digest=digest))

    (other,) = compare([attended(4e12, 50, NEW)], [attended(6e11, 100, OLD)]).changes
    assert other.outcome == "other" and "another amount of work: before 6e+11, now 4e+12" in str(other)
    # Old runs that can be compared count, the others do not.
    found = compare([sized(8192, 120e3, NEW)], [sized(2048, 100e3, OLD), sized(8192, 240e3, OLD)])
    assert found.regressions[0].runs == (1, 1)


def test_other_processor() -> None:
    """Training steps and launches depend on the processor; with another one they do not decide alone."""

    def trained(step: float, digest: str, model: str) -> list[StoredReport]:
        made = report([measured("training", step, "ms")], devices=[GPU], digest=digest, cpu=model)
        return [stored(made)]

    assert compare(trained(2, NEW, "EPYC"), trained(1, OLD, "EPYC")).regressions
    assert not compare(trained(2, NEW, "EPYC"), trained(1, OLD, "Xeon")).regressions
