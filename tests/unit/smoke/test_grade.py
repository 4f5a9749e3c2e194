"""Figures against what the hardware can do: every rule on both sides of its limit."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import builder.smoke.run as smoke_module
from builder.smoke.grade import LIMITS, Expected, grade, judge, references, shown, value_of, values_of, worst
from tests.support.reports import A100_40, A100_80, GIB, MI250X, STRANGE, a100, cpu, measured, ranked, report

SCHEMA = json.loads((Path(smoke_module.__file__).parent / "report.schema.json").read_text())
NVIDIA, NONE = Expected("nvidia", ("sm_80",)), Expected()


def graded(given: dict[str, Any], expected: Expected = NVIDIA) -> dict[str, Any]:
    """Grades, and checks what holds for every report: the schema, the input left as it was, a verdict no better than any part."""
    before = copy.deepcopy(given)
    out = grade(given, references(), expected)
    assert given == before
    jsonschema.validate(out, SCHEMA, jsonschema.Draft202012Validator)
    statuses = {f["status"] for f in out["grade"]["findings"]}
    assert out["verdict"] == worst([given["verdict"], *(s for s in statuses if s != "skip")])
    assert all(f["advice"] for f in out["grade"]["findings"] if f["status"] in ("warn", "fail"))
    return out


def finding(out: dict[str, Any], name: str, device: str = "") -> dict[str, Any]:
    (found,) = [f for f in out["grade"]["findings"] if f["id"] == name and device in f.get("device", "")]
    return dict(found)


def scaled(name: str, factor: float, *, noise: float = 0.005) -> dict[str, Any]:
    return finding(graded(a100({name: factor}, noise=noise)), name)


# reference.yml --------------------------------------------------------------------------------------------------------


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
        ({"name": "AMD Instinct MI250X / MI250", "memory_bytes": 64 * GIB}, "mi250x-gcd"),
        ({"name": "AMD Instinct MI300A", "memory_bytes": 128 * GIB}, "mi300a"),
        ({"name": "AMD Instinct MI300X", "memory_bytes": 192 * GIB}, "mi300x"),
        ({"name": "Tesla V100-SXM2-32GB", "memory_bytes": 32 * GIB}, "v100-sxm2"),
        ({"name": "Tesla V100-PCIE-16GB", "memory_bytes": 16 * GIB}, "v100-pcie"),
        ({"name": "Tesla P100-PCIE-16GB", "memory_bytes": 16 * GIB}, "p100-pcie"),
        ({"name": "Tesla T4", "memory_bytes": 15 * GIB}, "t4"),
        ({"name": "NVIDIA L40S", "memory_bytes": 45 * GIB}, "l40s"),
        # ROCm without its table of names
        ({**MI250X, "name": "AMD Radeon Graphics"}, "mi250x-gcd"),
        ({"name": "", "architecture": "gfx90a", "memory_bytes": 64 * GIB, "multiprocessors": 104}, "mi210"),
        ({"name": "", "architecture": "gfx942", "memory_bytes": 192 * GIB, "multiprocessors": 304}, "mi300x"),
    ],
)
def test_names_that_torch_reports_find_their_entry(facts: dict[str, Any], id: str) -> None:
    found = references().find(facts)
    assert found is not None and found.id == id


@pytest.mark.parametrize(
    "facts",
    [
        STRANGE,
        {},
        {"name": 7},
        {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "memory_bytes": 5 * GIB},  # a slice
        {"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 20 * GIB},  # half of one
        {"name": "NVIDIA H100 NVL", "memory_bytes": 94 * GIB},
        {"name": "NVIDIA H200 NVL", "memory_bytes": 140 * GIB},
        {"name": "Tesla T40", "memory_bytes": 15 * GIB},
        {"name": "", "architecture": "gfx1100", "memory_bytes": 24 * GIB, "multiprocessors": 48},
    ],
)
def test_parts_of_gpus_and_other_gpus_have_no_entry(facts: dict[str, Any]) -> None:
    assert references().find(facts) is None


#: FLOP per clock of a multiprocessor (multiply and add are two), by architecture; boost clocks in MHz. From the white papers.
PER_CLOCK = {
    "sm_60": {"fp32": 128, "fp16": 256},
    "sm_70": {"fp32": 128, "fp16": 1024},
    "sm_75": {"fp32": 128, "fp16": 1024},
    "sm_80": {"fp32": 128, "tf32": 1024, "bf16": 2048, "fp16": 2048},
    "sm_89": {"fp32": 256, "tf32": 512, "bf16": 1024, "fp16": 1024},
    "sm_90": {"fp32": 256, "tf32": 2048, "bf16": 4096, "fp16": 4096},
    "gfx908": {"fp32": 256, "bf16": 512, "fp16": 1024},
    "gfx90a": {"fp32": 256, "bf16": 1024, "fp16": 1024},
    "gfx942": {"fp32": 256, "tf32": 1024, "bf16": 2048, "fp16": 2048},
}
CLOCK = {
    "a100-sxm4-40gb": 1410,
    "a100-sxm4-80gb": 1410,
    "a100-pcie-40gb": 1410,
    "a100-pcie-80gb": 1410,
    "h100-sxm": 1830,
    "h200": 1830,
    "h100-pcie": 1620,
    "mi100": 1502,
    "mi210": 1700,
    "mi250x-gcd": 1700,
    "mi300a": 2100,
    "mi300x": 2100,
    "v100-sxm2": 1530,
    "v100-pcie": 1380,
    "v100s-pcie": 1597,
    "p100-pcie": 1303,
    "p100-sxm2": 1480,
    "t4": 1590,
    "l40s": 2520,
}
VECTOR_CLOCK = {"h100-sxm": 1980, "h200": 1980, "h100-pcie": 1755}  # higher than under its matrix units


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_peaks_are_what_units_and_clocks_give(device: Any) -> None:
    for key, per_clock in PER_CLOCK[device.architecture].items():
        clock = VECTOR_CLOCK.get(device.id, CLOCK[device.id]) if key == "fp32" else CLOCK[device.id]
        assert device.peak[key] == pytest.approx(
            device.multiprocessors * per_clock * clock * 1e-6, rel=0.02
        ), key
    assert set(device.peak) - {"memory", "transfer"} == set(PER_CLOCK[device.architecture])


@pytest.mark.parametrize("device", references().devices, ids=lambda d: d.id)
def test_every_figure_has_a_source_and_lies_below_its_peak(device: Any) -> None:
    assert references().sources[device.peak_source][1].startswith("https://")
    for key, figure in device.achieved.items():
        title, url = references().sources[figure.source]
        assert re.search(r"20\d\d", title) and url.startswith("https://"), figure.source
        assert figure.kind in ("achieved", "acceptance")
        if key in device.peak:
            assert 0.4 < figure.value / device.peak[key] < 1, key
        assert bool(figure.gpus) == (key == "allreduce")


def test_what_is_not_known_is_said_so() -> None:
    import yaml

    data = yaml.safe_load((Path(smoke_module.__file__).parent / "reference.yml").read_text())
    for device in data["devices"]:
        wanted = (set(device["peak"]) - {"source"}) | {"allreduce"}
        assert set(device["achieved"]) | set(device["unknown"]) == wanted, device["id"]
        assert not set(device["achieved"]) & set(device["unknown"]), device["id"]
    assert {
        s
        for d in data["devices"]
        for s in [d["peak"]["source"], *(f["source"] for f in d["achieved"].values())]
    } == set(data["sources"])


# known GPUs -----------------------------------------------------------------------------------------------------------


def test_a_good_gpu_passes_and_each_figure_says_what_it_was_held_against() -> None:
    out = graded(a100())
    assert (
        out["verdict"] == "pass"
        and out["grade"]["verdict"] == "pass"
        and out["grade"]["devices"] == ["a100-sxm4-40gb"]
    )
    found = finding(out, "matmul.bf16")
    assert found["basis"] == "achieved" and found["fraction"] == pytest.approx(248 / 246.33, rel=0.02)
    assert (
        "248 TFLOP/s" in found["seen"]
        and "of 246 TFLOP/s (published for NVIDIA A100 SXM4 40 GB)" in found["seen"]
    )
    assert found["source"].startswith("torch-performance-test-data")
    tf32 = finding(out, "matmul.tf32")  # nobody published it
    assert tf32["basis"] == "peak" and tf32["reference"] == 156_000 and tf32["status"] == "pass"
    assert finding(out, "transfer.h2d_pinned")["basis"] == "peak"


@pytest.mark.parametrize(
    ("name", "factor", "status"),
    [
        ("matmul.bf16", 0.85, "pass"),
        ("matmul.bf16", 0.75, "warn"),
        ("matmul.bf16", 0.45, "fail"),
        ("memory.copy", 0.84, "pass"),
        ("memory.copy", 0.70, "warn"),
        ("memory.copy", 0.40, "fail"),
        ("matmul.tf32", 0.60, "pass"),
        ("matmul.tf32", 0.45, "warn"),
        ("matmul.tf32", 0.20, "fail"),
        ("transfer.h2d_pinned", 0.70, "pass"),
        ("transfer.h2d_pinned", 0.45, "warn"),
        ("transfer.h2d_pinned", 0.10, "fail"),
    ],
)
def test_limits(name: str, factor: float, status: str) -> None:
    assert scaled(name, factor)["status"] == status
    assert graded(a100({name: factor}))["verdict"] == status


def test_a_figure_below_a_limit_by_less_than_its_noise_is_above_it() -> None:
    value = value_of(measured("matmul.bf16", 197_500.0, noise=0.002))
    noisy = value_of(measured("matmul.bf16", 193_000.0, noise=0.08))
    assert value is not None and noisy is not None
    limit = LIMITS["achieved"]
    assert judge(value, 246_330.0 * 1.02, limit)[0] == "warn"  # 0.786: quiet, so below
    assert judge(noisy, 246_330.0, limit)[0] == "pass"  # 0.783: too noisy to tell
    assert judge(noisy, 246_330.0 * 2, limit)[0] == "fail"  # noise does not explain this


def test_outliers_do_not_change_the_status() -> None:
    given = a100()
    for m in given["measurements"]:
        unit = next(k.removeprefix("median_") for k in m if k.startswith("median_"))
        m[f"samples_{unit}"][:5] = [
            m[f"median_{unit}"] / 50
        ] * 5  # five of 21 were disturbed: median and MAD hardly notice
    assert graded(given)["verdict"] == "pass"


def test_a_clock_that_is_held_down_now_and_then_is_named() -> None:
    found = finding(graded(a100(noise=0.30)), "matmul.fp16")
    assert found["status"] == "warn" and "varies by" in found["seen"] and "clock" in found["advice"]


def test_faster_than_paper_is_no_measurement() -> None:
    found = scaled("memory.copy", 1.6)
    assert found["status"] == "warn" and "no such device" in found["advice"]


def test_what_was_found_wrong_is_not_praised_for_its_speed() -> None:
    given = a100(verdict="fail")
    given["measurements"][0]["status"] = "fail"
    out = graded(given)
    assert out["verdict"] == "fail"
    assert all(f["id"] != given["measurements"][0]["id"] for f in out["grade"]["findings"])


def test_an_all_reduce_is_held_against_as_many_gpus_only() -> None:
    def reduced(ranks: int, value: float) -> list[dict[str, Any]]:
        devices = [{**A100_40, "rank": i} for i in range(ranks)]
        out = graded(
            a100(devices=devices, ranks=ranks) | {"measurements": [measured("allreduce.node", value)]}
        )
        return [f for f in out["grade"]["findings"] if f["id"] == "allreduce.node"]

    assert reduced(4, 80.0) == []
    assert [f["status"] for f in reduced(8, 230.0)] == ["pass"]
    (slow,) = reduced(8, 12.0)
    assert slow["status"] == "fail" and "NCCL_DEBUG" in slow["advice"]


def test_a_low_figure_says_what_held_the_clock_down() -> None:
    hot = {
        **A100_40,
        "after": {"throttled": ["heat"], "temperature_c": 91, "clock_mhz": 735, "clock_max_mhz": 1410},
    }
    found = finding(graded(a100({"matmul.bf16": 0.6}, devices=[hot])), "matmul.bf16")
    assert found["seen"].endswith("; clock 735 of 1410 MHz, held down by heat, 91 °C")
    assert "clock" not in finding(graded(a100(devices=[hot])), "matmul.bf16")["seen"]  # all is well
    devices = [{**(hot if i == 2 else A100_40), "rank": i} for i in range(4)]
    out = graded(report([ranked("matmul.bf16", (248e3, 247e3, 180e3, 249e3))], devices=devices, ranks=4))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert "91 °C" in slow["seen"]


# unknown GPUs ---------------------------------------------------------------------------------------------------------


def test_an_unknown_gpu_is_never_failed_for_being_unknown() -> None:
    for scale in (1.0, 1e-3, 50.0):
        out = graded(
            a100(
                dict.fromkeys(("matmul.fp32", "matmul.fp16", "matmul.bf16", "matmul.tf32"), scale),
                devices=[STRANGE],
            ),
            Expected("nvidia"),
        )
        assert out["verdict"] == "pass" and out["grade"]["devices"] == []
        assert "Frobnicator 9000" in finding(out, "device.reference")["seen"]
        assert finding(out, "matmul.bf16")["basis"] == "consistency"


def test_an_unknown_gpu_whose_matrix_units_sleep_is_warned_of() -> None:
    out = graded(a100({"matmul.bf16": 0.05}, devices=[STRANGE]), Expected("nvidia"))
    assert finding(out, "matmul.bf16")["status"] == "warn" and out["verdict"] == "warn"
    assert finding(out, "matmul.fp16")["status"] == "pass"


# one among equals -----------------------------------------------------------------------------------------------------


def several(
    *medians: float, device: dict[str, Any] = A100_40, name: str = "matmul.bf16", **more: Any
) -> dict[str, Any]:
    devices = [{**device, "rank": i, "host": "n017"} for i in range(len(medians))]
    return report([ranked(name, medians, **more)], devices=devices, ranks=len(medians))


def test_the_slow_one_among_equals_is_named() -> None:
    out = graded(several(248e3, 247e3, 205e3, 250e3))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert (
        slow["device"] == "rank 2 on n017 (cuda:2)"
        and slow["status"] == "warn"
        and slow["fraction"] == pytest.approx(0.83, abs=0.01)
    )
    assert "205 TFLOP/s; the 4 of NVIDIA A100-SXM4-40GB usually do 248 TFLOP/s" in slow["seen"]
    assert out["verdict"] == "warn"


def test_much_slower_than_its_equals_fails_even_where_the_device_is_unknown() -> None:
    out = graded(several(100e3, 99e3, 60e3, 101e3, device=STRANGE), Expected("nvidia"))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert slow["status"] == "fail" and slow["device"].startswith("rank 2") and out["verdict"] == "fail"


def test_of_two_the_slower_is_named() -> None:
    out = graded(several(248e3, 180e3))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert slow["device"].startswith("rank 1") and slow["status"] == "fail"


def test_times_count_the_other_way_and_the_hosts_side_warns_only() -> None:
    out = graded(several(10.0, 10.1, 30.0, 9.9, name="training", unit="ms"))
    (slow,) = [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert (
        slow["device"].startswith("rank 2")
        and slow["status"] == "warn"
        and slow["fraction"] == pytest.approx(0.335, abs=0.01)
    )


@pytest.mark.parametrize("medians", [(248e3, 240e3, 236e3, 246e3), (248e3,), (1.0, 0.0)])
def test_ordinary_differences_are_not_named(medians: tuple[float, ...]) -> None:
    out = graded(several(*medians))
    assert not [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]


def test_different_devices_are_no_equals() -> None:
    devices = [{**A100_40, "rank": 0}, {**MI250X, "rank": 1}]
    out = graded(report([ranked("matmul.fp32", (18e3, 33e3))], devices=devices, ranks=2))
    assert not [f for f in out["grade"]["findings"] if f.get("basis") == "equals"]
    assert out["grade"]["devices"] == ["a100-sxm4-40gb", "mi250x-gcd"]


# CPUs -----------------------------------------------------------------------------------------------------------------


def test_a_cpu_is_graded_by_the_roofline_of_the_same_run() -> None:
    out = graded(cpu(), NONE)
    assert out["verdict"] == "pass"
    product = finding(out, "matmul.fp32")
    assert product["basis"] == "roofline" and product["reference"] == pytest.approx(
        400, rel=0.05
    )  # arithmetic is the ceiling
    attention = finding(out, "attention")
    assert attention["fraction"] == pytest.approx(90 / 400, rel=0.1)
    low = cpu()
    next(m for m in low["measurements"] if m["id"] == "attention").update(flop=1e9, bytes=1e9)
    assert finding(graded(low, NONE), "attention")["reference"] == pytest.approx(60, rel=0.05)  # memory is


def test_a_slow_machine_as_a_whole_is_no_fault_of_the_image() -> None:
    slow = dict.fromkeys(
        ("cpu.peak", "matmul.fp32", "memory.triad", "memory.copy", "conv.training", "attention"), 0.12
    )
    assert (
        graded(cpu(slow), NONE)["grade"]["findings"][0]["id"] == "cpu.scaling"
    )  # but its cores are not all there
    out = graded(cpu({**slow, "cpu.peak": 0.12}), NONE)
    assert out["verdict"] == "warn" and {
        f["id"] for f in out["grade"]["findings"] if f["status"] != "pass"
    } == {"cpu.scaling"}


@pytest.mark.parametrize(("factor", "status"), [(0.62, "pass"), (0.45, "warn"), (0.2, "fail")])
def test_products_far_below_the_roofline(factor: float, status: str) -> None:
    out = graded(cpu({"matmul.fp32": factor}), NONE)
    assert finding(out, "matmul.fp32")["status"] == status == out["verdict"]


def test_time_that_others_took_is_no_failure() -> None:
    given = cpu({"matmul.fp32": 0.2})
    given["measurements"][1]["lost_fraction"] = 0.6
    found = finding(graded(given, NONE), "matmul.fp32")
    assert found["status"] == "warn" and "60% of the time went to others" in found["seen"]


def test_without_the_ceilings_nothing_is_said() -> None:
    out = graded(report([measured("matmul.fp32", 300.0, device="cpu")]), NONE)
    assert out["grade"] == {"verdict": "skip", "devices": [], "findings": []} and out["verdict"] == "pass"


# what is expected -----------------------------------------------------------------------------------------------------


def test_a_gpu_image_that_was_measured_on_the_cpu_fails() -> None:
    out = graded(cpu(), NVIDIA)
    assert out["verdict"] == "fail" and "on the CPU" in finding(out, "device.measured")["seen"]


def test_another_number_of_gpus_fails_and_another_gpu_than_the_recipes_warns() -> None:
    assert finding(graded(a100(), Expected("nvidia", ("sm_80",), 4)), "device.count")["status"] == "fail"
    out = graded(a100(), Expected("nvidia", ("sm_90",)))
    assert (
        finding(out, "device.architecture")["seen"] == "sm_80; the recipe is for sm_90"
        and out["verdict"] == "warn"
    )


def test_a_report_that_could_not_be_made_stays_an_error() -> None:
    out = grade(report([], verdict="error"), references(), NVIDIA)
    assert out["verdict"] == "error"


def test_the_verdict_of_the_benchmark_is_never_made_better() -> None:
    for verdict in ("warn", "fail", "error"):
        assert grade(a100(verdict=verdict), references(), NVIDIA)["verdict"] == verdict


# odd reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"median_gflop_per_s": None},
        {"median_gflop_per_s": "fast"},
        {"median_gflop_per_s": float("nan")},
        {"repeats": 0},
        {"median_gflop_per_s": True},
        {"mad_gflop_per_s": None},
        {"device": 7},
        {"device": "cuda:99"},
        {"device": "cuda:x"},
        {"ranks": "many"},
        {"ranks": [1, 2]},
        {"ranks": [{"rank": "a"}, {"rank": 1, "median_gflop_per_s": 2.0}]},
        {"median_gflop_per_s": 0.0, "mad_gflop_per_s": 0.0},
    ],
)
def test_odd_values_are_left_out_not_believed(change: dict[str, Any]) -> None:
    given = a100()
    given["measurements"][0].update(change)
    out = grade(given, references(), NVIDIA)  # no schema: it would refuse some of these
    assert all(f["fraction"] == f["fraction"] for f in out["grade"]["findings"] if "fraction" in f)
    json.dumps(out["grade"], allow_nan=False)


def test_odd_facts_are_left_out() -> None:
    for devices in (
        None,
        {},
        [None, 3],
        [{"name": None, "memory_bytes": "x", "after": 3}],
        [{"after": {"throttled": 1}}],
    ):
        given = a100()
        given["facts"]["devices"] = devices
        grade(given, references(), NVIDIA)


def test_figures_for_people() -> None:
    assert [shown(v, "gflop_per_s") for v in (0.0, 0.0412, 83.81, 999.4, 248_123.0)] == [
        "0 GFLOP/s",
        "0.0412 GFLOP/s",
        "83.8 GFLOP/s",
        "999 GFLOP/s",
        "248 TFLOP/s",
    ]
    assert (
        shown(1383, "gb_per_s") == "1.38 TB/s"
        and shown(12.34, "ms") == "12.3 ms"
        and shown(12345, "samples_per_s") == "12.3 k/s"
    )


def test_ranks_give_a_value_each() -> None:
    values = values_of(ranked("matmul.bf16", (1.0, 2.0)))
    assert [(v.rank, v.median, v.where) for v in values] == [
        (0, 1.0, "rank 0 on n017 (cuda:0)"),
        (1, 2.0, "rank 1 on n017 (cuda:1)"),
    ]
    assert values_of({"id": "x"}) == []
