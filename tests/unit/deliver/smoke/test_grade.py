"""Grading: every rule on both sides of its limit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from builder.deliver.smoke.finding import evaluate
from builder.deliver.smoke.grade import grade, worst
from builder.deliver.smoke.limits import LIMITS
from builder.deliver.smoke.reference import references
from builder.deliver.smoke.values import values_of
from builder.lock.config.site import Gpu
from tests.support.reports import A100_40, MI250X, STRANGE, a100, cpu, measured, ranked, report
from tests.support.schema import check_report

NVIDIA, NONE = Gpu(vendor="nvidia", architectures=("sm_80",)), Gpu()


def graded(given: dict[str, Any], gpu: Gpu = NVIDIA, devices: int | None = None) -> dict[str, Any]:
    """Grades a report and checks the invariants: it matches the schema; the input is unchanged."""
    before = copy.deepcopy(given)
    out = grade(given, references(), gpu, devices)
    assert given == before
    check_report(out)
    statuses = {f["status"] for f in out["grade"]["findings"]}
    assert out["verdict"] == worst([given["verdict"], *(s for s in statuses if s != "skip")])
    assert all(f["advice"] for f in out["grade"]["findings"] if f["status"] in ("warn", "fail"))
    return out


def finding(out: dict[str, Any], name: str, device: str = "") -> dict[str, Any]:
    (found,) = [f for f in out["grade"]["findings"] if f["id"] == name and device in f.get("device", "")]
    return dict(found)


def scaled(name: str, factor: float, *, noise: float = 0.005) -> dict[str, Any]:
    return finding(graded(a100({name: factor}, noise=noise)), name)


# known GPUs --------------------------------------------------------------------------------------


def test_good_gpu() -> None:
    """A good GPU passes, and each finding names its reference and source."""
    out = graded(a100())
    assert out["verdict"] == out["grade"]["verdict"] == "pass"
    assert out["grade"]["devices"] == ["a100-sxm4-40gb"]
    found = finding(out, "matmul.bf16")
    assert found["basis"] == "achieved" and found["fraction"] == pytest.approx(248 / 246.33, rel=0.02)
    assert "248 TFLOP/s" in found["seen"]
    assert "of 246 TFLOP/s (published for NVIDIA A100 SXM4 40 GB)" in found["seen"]
    assert found["source"].startswith("torch-performance-test-data")
    assert finding(out, "memory.copy")["reference"] == 1384
    assert finding(out, "memory.triad")["reference"] == 1398
    assert finding(out, "transfer.h2d_pinned")["reference"] == 25.5


@pytest.mark.parametrize(
    ("name", "factor", "status"),
    [
        ("matmul.bf16", 0.85, "pass"),
        ("matmul.bf16", 0.75, "warn"),
        ("matmul.bf16", 0.45, "fail"),
        ("memory.copy", 0.84, "pass"),
        ("memory.copy", 0.70, "warn"),
        ("memory.copy", 0.40, "fail"),
        ("matmul.tf32", 0.72, "pass"),  # limits of its own
        ("matmul.tf32", 0.45, "warn"),
        ("matmul.tf32", 0.30, "fail"),
        ("transfer.h2d_pinned", 0.85, "pass"),
        ("transfer.h2d_pinned", 0.70, "warn"),
        ("transfer.h2d_pinned", 0.40, "fail"),
    ],
)
def test_limits(name: str, factor: float, status: str) -> None:
    """The limits of each basis: pass, warn, fail."""
    assert scaled(name, factor)["status"] == status
    assert graded(a100({name: factor}))["verdict"] == status


def test_noise() -> None:
    """A value that is below a limit by less than its noise passes."""
    (value,) = values_of(measured("matmul.bf16", 197_500.0, noise=0.002))
    (noisy,) = values_of(measured("matmul.bf16", 193_000.0, noise=0.08))
    limit = LIMITS["achieved"]
    assert evaluate(value, 246_330.0 * 1.02, limit)[0] == "warn"  # 0.786: little noise, so it is below
    assert evaluate(noisy, 246_330.0, limit)[0] == "pass"  # 0.783: within the noise
    assert evaluate(noisy, 246_330.0 * 2, limit)[0] == "fail"  # noise does not explain this


def test_outliers() -> None:
    """Outliers do not change the status."""
    given = a100()
    for m in given["measurements"]:
        unit = next(k.removeprefix("median_") for k in m if k.startswith("median_"))
        m[f"samples_{unit}"][:5] = [m[f"median_{unit}"] / 50] * 5  # five of 21: median and MAD hardly change
    assert graded(given)["verdict"] == "pass"


def test_unsteady_gpu() -> None:
    """A GPU whose values vary much is warned about."""
    found = finding(graded(a100(noise=0.30)), "matmul.fp16")
    assert found["status"] == "warn" and "varies by" in found["seen"] and "clock" in found["advice"]


def test_wrong_results_are_not_graded() -> None:
    """A measurement with a wrong result has no finding."""
    given = a100(verdict="fail")
    given["measurements"][0]["status"] = "fail"
    out = graded(given)
    assert out["verdict"] == "fail"
    assert all(f["id"] != given["measurements"][0]["id"] for f in out["grade"]["findings"])


def test_throttled_gpu() -> None:
    """A finding about a low value names the clock and the reason for throttling."""
    hot = {
        **A100_40,
        "after": {"throttled": ["heat"], "temperature_c": 91, "clock_mhz": 735, "clock_max_mhz": 1410},
    }
    found = finding(graded(a100({"matmul.bf16": 0.6}, devices=[hot])), "matmul.bf16")
    assert found["seen"].endswith("; 735 of 1,410 MHz, 91 °C, throttled by heat")
    assert "MHz" not in finding(graded(a100(devices=[hot])), "matmul.bf16")["seen"]
    devices = [{**(hot if i == 2 else A100_40), "rank": i} for i in range(4)]
    out = graded(report([ranked("matmul.bf16", (248e3, 247e3, 180e3, 249e3))], devices=devices, ranks=4))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert "91 °C" in slow["seen"]


# unknown GPUs ------------------------------------------------------------------------------------


def test_unknown_gpu() -> None:
    """An unknown GPU never fails because it is unknown."""
    for scale in (1.0, 1e-3, 50.0):
        out = graded(
            a100(
                dict.fromkeys(("matmul.fp32", "matmul.fp16", "matmul.bf16", "matmul.tf32"), scale),
                devices=[STRANGE],
            ),
            Gpu(vendor="nvidia"),
        )
        assert out["verdict"] == "pass" and out["grade"]["devices"] == []
        assert "Frobnicator 9000" in finding(out, "device.reference")["seen"]


# peers -------------------------------------------------------------------------------------------


def several(
    *medians: float, device: dict[str, Any] = A100_40, name: str = "matmul.bf16", **more: Any
) -> dict[str, Any]:
    devices = [{**device, "rank": i, "host": "n017"} for i in range(len(medians))]
    return report([ranked(name, medians, **more)], devices=devices, ranks=len(medians))


def test_slow_peer() -> None:
    """A GPU that is slower than its peers is reported."""
    out = graded(several(248e3, 247e3, 205e3, 250e3))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert (
        slow["device"] == "rank 2 on n017 (cuda:2)"
        and slow["status"] == "warn"
        and slow["fraction"] == pytest.approx(0.83, abs=0.01)
    )
    assert "205 TFLOP/s: 83% of 248 TFLOP/s (4 x NVIDIA A100-SXM4-40GB typically reach it)" in slow["seen"]
    assert out["verdict"] == "warn"


def test_two_peers() -> None:
    """Of two GPUs the slower one is reported."""
    out = graded(several(248e3, 180e3))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert slow["device"].startswith("rank 1") and slow["status"] == "fail"


@pytest.mark.parametrize("medians", [(248e3, 240e3, 236e3, 246e3), (248e3,), (1.0, 0.0)])
def test_equal_peers(medians: tuple[float, ...]) -> None:
    """Ordinary differences are not reported."""
    out = graded(several(*medians))
    assert not [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]


def test_different_models() -> None:
    """GPUs of different models are not compared."""
    devices = [{**A100_40, "rank": 0}, {**MI250X, "rank": 1}]
    out = graded(report([ranked("matmul.fp32", (18e3, 33e3))], devices=devices, ranks=2))
    assert not [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert out["grade"]["devices"] == ["a100-sxm4-40gb", "mi250x-gcd"]


# CPUs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_cpu(factor: float) -> None:
    """The figures of a CPU are shown and not graded, however slow they are."""
    out = graded(cpu({"matmul.fp32": factor}), NONE)
    assert out["grade"] == {"verdict": "skip", "devices": [], "findings": []} and out["verdict"] == "pass"


# expectations of the recipe ----------------------------------------------------------------------


def test_gpu_image_on_cpu() -> None:
    """An image for GPUs that ran on the CPU fails."""
    out = graded(cpu(), NVIDIA)
    assert out["verdict"] == "fail" and "on the CPU" in finding(out, "device.measured")["seen"]


def test_other_gpus() -> None:
    """Another number of GPUs fails; another architecture warns."""
    assert (
        finding(graded(a100(), Gpu(vendor="nvidia", architectures=("sm_80",)), 4), "device.count")["status"]
        == "fail"
    )
    out = graded(a100(), Gpu(vendor="nvidia", architectures=("sm_90",)))
    assert (
        finding(out, "device.architecture")["seen"] == "sm_80; the recipe is for sm_90"
        and out["verdict"] == "warn"
    )


def test_error_stays() -> None:
    """The verdict "error" does not change."""
    out = grade(report([], verdict="error"), references(), NVIDIA)
    assert out["verdict"] == "error"


@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_nothing_measured(verdict: str) -> None:
    """A report in which everything was skipped is an error, whatever an older benchmark said."""
    skipped = [{"id": "matmul.bf16", "status": "skip", "seen": "the budget is spent", "advice": ""}]
    assert grade(report(skipped, verdict=verdict), references(), NONE)["verdict"] == "error"
    assert grade(report(skipped, verdict=verdict), references(), NVIDIA)["verdict"] == "error"
    assert grade(report(skipped, verdict="fail"), references(), NONE)["verdict"] == "fail"
    slow = {**measured("training", 5.0, "ms"), "status": "warn"}
    assert grade(report([slow], verdict="warn"), references(), NONE)["verdict"] == "warn"


def test_verdict_never_improves() -> None:
    """The verdict of the benchmark never gets better."""
    for verdict in ("warn", "fail", "error"):
        assert grade(a100(verdict=verdict), references(), NVIDIA)["verdict"] == verdict


# malformed reports -------------------------------------------------------------------------------


def test_gpu_recipe_without_framework() -> None:
    """A test that computes nothing cannot tell how the GPUs are; a framework on the CPU fails."""
    imports = report([{**measured("matmul.fp32", 1.0), "id": "imports", "device": ""}])
    out = graded({**imports, "test": {"imports": ["sklearn"]}})
    found = finding(out, "device.measured")
    assert (out["verdict"], found["status"]) == ("warn", "warn") and "GPUs were not tested" in found["seen"]
    assert graded({**imports, "test": {"imports": ["sklearn"]}}, NONE)["verdict"] == "pass"
    on_cpu = report([measured("matmul.fp32", 1.0, device="cpu")])
    assert graded({**on_cpu, "test": {"framework": "jax"}})["verdict"] == "fail"
    on_gpu = report([measured("matmul.fp32", 18e3, device="cuda:0")])
    assert graded({**on_gpu, "test": {"framework": "jax"}})["verdict"] == "pass"
