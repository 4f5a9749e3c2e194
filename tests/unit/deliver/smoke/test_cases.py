"""Grading by published figures: healthy GPUs pass, and what explains a low figure is named."""

from __future__ import annotations

from typing import Any

import pytest

from builder.deliver.smoke.grade import grade
from builder.deliver.smoke.reference import references
from builder.lock.config.site import Gpu
from tests.support.reports import A100_40, H200, MI300X, STRANGE, measured, ranked, report
from tests.support.schema import check_report

ANY = Gpu()


def graded(
    measurement: dict[str, Any], device: dict[str, Any], ranks: int = 1, **facts: Any
) -> dict[str, Any]:
    """The finding about the only measurement of a report; of several ranks the worst."""
    devices = [{**device, **({"rank": i, "host": "n017"} if ranks > 1 else {})} for i in range(ranks)]
    given = report([measurement], devices=devices, ranks=ranks)
    given["facts"].update(facts)
    out = grade(given, references(), ANY)
    check_report(out)
    found = [
        f for f in out["grade"]["findings"] if f["id"] == measurement["id"] and f.get("basis") != "equals"
    ]
    order = ["skip", "pass", "warn", "fail"]
    return dict(max(found, key=lambda finding: order.index(finding["status"])))


def product(precision: str, tflops: float, **more: Any) -> dict[str, Any]:
    return measured(f"matmul.{precision}", tflops * 1e3, **more)


# healthy GPUs that failed or warned before -------------------------------------------------------


def test_tf32_on_amd() -> None:
    """TF32 on AMD depends on variables and versions: it warns at most."""
    assert graded(product("tf32", 98.0, size=8192), MI300X)["status"] == "warn"


def test_tf32_override() -> None:
    """With NVIDIA_TF32_OVERRIDE=0, TF32 is fp32: the variable is named, and not clocks and heat."""
    found = graded(product("tf32", 18.8), A100_40, variables={"NVIDIA_TF32_OVERRIDE": "0"})
    assert found["status"] == "warn" and "NVIDIA_TF32_OVERRIDE=0 is set" in found["seen"]
    assert "unset NVIDIA_TF32_OVERRIDE=0" in found["advice"] and "heat" not in found["advice"]
    assert graded(product("tf32", 18.8), A100_40)["status"] == "fail"
    # the variable explains nothing in fp32
    assert graded(product("fp32", 7.0), A100_40, variables={"NVIDIA_TF32_OVERRIDE": "0"})["status"] == "fail"


def test_small_product() -> None:
    """If only small products fitted the time, they can pass, but they do not warn."""
    small = [{"size": 2048, "median_gflop_per_s": 430e3}]
    found = graded(product("bf16", 430.0, size=2048, sizes=small), H200)
    assert found["status"] == "skip" and found["seen"].endswith("not graded: only size 2048 fitted the time")
    assert graded(product("bf16", 780.0, size=2048, sizes=small), H200)["status"] == "pass"
    # it takes so long that the host cannot be why
    assert graded(product("bf16", 10.0, size=2048, sizes=small), H200)["status"] == "fail"
    # larger ones were measured, too, and were slower
    sizes = [*small, {"size": 8192, "median_gflop_per_s": 400e3}]
    assert graded(product("bf16", 430.0, size=2048, sizes=sizes), H200)["status"] == "warn"


def test_one_rank_had_less_time() -> None:
    """Its small products are not evaluated; those of the other ranks are."""
    item = ranked("matmul.bf16", (20e3, 100e3), size=2048)
    for rank, size in zip(item["ranks"], (2048, 8192), strict=True):
        rank["size"] = size
    devices = [{**A100_40, "rank": i} for i in range(2)]
    findings = grade(report([item], devices=devices, ranks=2), references(), ANY)["grade"]["findings"]
    found = {f["status"] for f in findings if "fitted" not in f["seen"] and f.get("basis") == "achieved"}
    assert found == {"fail"}


@pytest.mark.parametrize(
    ("speed", "status"), [(3110.0, "pass"), (4300.0, "pass"), (2900.0, "warn"), (1500.0, "fail")]
)
def test_h200_memory(speed: float, status: str) -> None:
    """Copies of an old and of a new driver pass; 60 % of a healthy H200 does not."""
    assert graded(measured("memory.copy", speed), H200)["status"] == status


def test_copy_and_triad() -> None:
    """Copies are compared with copies, triads with triads."""
    device = {"name": "NVIDIA GH200 120GB", "architecture": "sm_90", "memory_bytes": 97871 << 20}
    assert graded(measured("memory.copy", 2600.0), device)["reference"] == 3174
    assert graded(measured("memory.triad", 2600.0), device)["status"] == "warn"  # of 3783


# other rules -------------------------------------------------------------------------------------


def test_reference_too_low() -> None:
    """A figure far above a published one is noted, and passes."""
    device = {"name": "NVIDIA GH200 120GB", "architecture": "sm_90", "memory_bytes": 97871 << 20}
    found = graded(product("bf16", 720.0), device)
    assert found["status"] == "pass" and "the reference is too low" in found["seen"]
    assert "too low" not in graded(product("bf16", 620.0), device)["seen"]
    # a limit for accepting a machine is exceeded by every good one
    assert "too low" not in graded(product("fp32", 120.0), MI300X)["seen"]


def test_above_peak() -> None:
    """Above 110 % of the peak, the measurement is wrong; GPUs for games exceed theirs."""
    assert graded(product("bf16", 1050.0), H200)["status"] == "pass"
    found = graded(product("bf16", 1300.0), H200)
    assert found["status"] == "warn" and "no such device" in found["advice"]
    game = {"name": "NVIDIA GeForce RTX 5090", "architecture": "sm_120", "memory_bytes": 32109 << 20}
    assert graded(product("tf32", 135.0), game)["status"] == "pass"


def test_limits_of_a_figure() -> None:
    """The best of many shapes has wider limits than a figure measured as builder does."""
    assert graded(product("bf16", 460.0), MI300X)["status"] == "pass"  # 0.69
    found = graded(product("bf16", 440.0), MI300X)
    assert found["status"] == "warn" and "PYTORCH_TUNABLEOP_ENABLED=1" in found["advice"]
    tuned = {"PYTORCH_TUNABLEOP_ENABLED": "1"}
    assert "TUNABLEOP" not in graded(product("bf16", 440.0), MI300X, variables=tuned)["advice"]


def test_double_and_eighth_precision() -> None:
    """fp64 and fp8 have references, too."""
    assert graded(product("fp64", 20.0), A100_40)["basis"] == "peak"
    assert graded(product("fp8", 1400.0), H200)["reference"] == 1_453_400


def test_unbound_transfer() -> None:
    """A rank that could not be bound to its GPU's NUMA node is shown and not graded."""
    slow = measured("transfer.h2d_pinned", 4.0, bound=False)
    found = graded(slow, A100_40)
    assert found["status"] == "skip" and "NUMA node" in found["seen"]
    assert graded({**slow, "bound": True}, A100_40)["status"] == "fail"


def test_known_slow_cases() -> None:
    """Memory of another GH200 module, and fp8 of an old ROCm, warn and do not fail."""
    device = {"name": "NVIDIA GH200 120GB", "architecture": "sm_90", "memory_bytes": 97871 << 20}
    assert graded(measured("transfer.h2d_pinned", 115.0), device)["status"] == "warn"
    assert graded(product("fp8", 110.0), MI300X)["status"] == "warn"


def test_all_reduce() -> None:
    """The figure of the algorithm, the number of GPUs and the size counts; small arrays are not graded."""

    def reduced(value: float, **more: Any) -> dict[str, Any]:
        return graded(measured("allreduce.node", value, members=8, **more), H200)

    assert reduced(470.0, size=4 << 30, algorithm="nvls")["reference"] == 473.10
    assert reduced(360.0, size=8 << 30, algorithm="ring")["reference"] == 365.6
    assert reduced(360.0, size=8 << 30, algorithm="tree")["reference"] == 473.10  # what NCCL chooses
    slow = reduced(40.0, size=16 << 30)
    assert slow["status"] == "fail" and "NCCL_DEBUG" in slow["advice"]
    assert reduced(20.0, size=4 << 20)["status"] == "skip"
    assert "too low" in reduced(560.0, size=4 << 30)["seen"]
    assert "too low" not in reduced(560.0, size=12 << 30)["seen"]


# peers -------------------------------------------------------------------------------------------


def slow_one(item: dict[str, Any]) -> dict[str, Any]:
    """The finding about the only slow device."""
    (found,) = slow(item)
    return found


def slow(item: dict[str, Any]) -> list[dict[str, Any]]:
    devices = [{**STRANGE, "rank": i, "host": "n017"} for i in range(len(item["ranks"]))]
    out = grade(report([item], devices=devices, ranks=len(devices)), references(), Gpu())
    return [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]


@pytest.mark.parametrize(("flop", "status"), [(2e11, "warn"), (3.8e12, "fail")])
def test_host_bound(flop: float, status: str) -> None:
    """Attention of 0.4 ms may wait for the host's Python; of 8 ms it is the GPU."""
    assert slow_one(ranked("attention", (500e3, 490e3, 300e3, 505e3), flop=flop))["status"] == status


def test_smaller_product() -> None:
    """A GPU that had time for a small product only is not broken because of that."""
    item = ranked("matmul.bf16", (780e3, 775e3, 430e3, 782e3), flop=1e12)
    for rank, size in zip(item["ranks"], (8192, 16384, 2048, 8192), strict=True):
        rank["size"] = size
    assert not slow(item)
    item["ranks"][2]["size"] = 8192  # and larger ones were slower
    assert slow_one(item)["status"] == "fail"
