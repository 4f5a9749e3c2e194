"""The verdict and the schema of a report."""

from __future__ import annotations

import jsonschema
import pytest

from builder.bench.report import figures, table, verdict
from builder.bench.schema import SCHEMA_VERSION
from tests.support.schema import SCHEMA


def test_nothing_measured_is_no_pass() -> None:
    report = {"probes": [{"status": "pass"}], "measurements": [{"status": "skip"}]}
    assert verdict(report) == "error"
    assert verdict({**report, "measurements": [{"status": "pass"}]}) == "pass"


def test_nothing_measured_with_warnings() -> None:
    """Only skips and a warning of the time budget: that is no "warn", with which an image is published."""
    probe = {"id": "time.budget", "status": "warn"}
    skipped = {"id": "matmul.bf16", "status": "skip"}
    report = {"probes": [probe], "measurements": [skipped]}
    assert verdict(report) == "error"
    empty = {"id": "dataloader", "status": "warn"}
    assert verdict({**report, "measurements": [skipped, empty]}) == "error"
    slow = {"id": "attention", "status": "warn", "median_gflop_per_s": 1.0}
    assert verdict({**report, "measurements": [skipped, slow]}) == "warn"
    assert verdict({**report, "probes": [{**probe, "status": "fail"}]}) == "fail"


def test_worst_status_counts() -> None:
    assert verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "pass"}]}) == "warn"
    assert verdict({"probes": [{"status": "warn"}], "measurements": [{"status": "fail"}]}) == "fail"


def test_table() -> None:
    probe = {"id": "gpu.visible", "status": "fail", "seen": "torch sees no GPU", "advice": "add --nv"}
    measured = {"id": "memory.copy", "status": "pass", "seen": "", "advice": ""}
    measured.update(median_gb_per_s=12.34, mad_gb_per_s=0.056, repeats=9, size=4096)
    shown = table({"probes": [probe], "measurements": [measured], "verdict": "fail", "duration_s": 1.25})
    assert shown.splitlines() == [
        "fail  gpu.visible            torch sees no GPU",
        "                             -> add --nv",
        "pass  memory.copy            12.34 gb/s +- 0.056 (9 times, size 4096)",
        "FAIL in 1.2 s",
    ]
    assert figures({"id": "x"}) == ""
    item = {"median_gflop_per_s": 7.93e5, "mad_gflop_per_s": 900.0, "repeats": 40, "size": 16384}
    assert figures(item) == "793 tflop/s +- 0.9 (40 times, size 16384)"
    item = {"median_gb_per_s": 4012.0, "mad_gb_per_s": 3.0, "repeats": 1, "size": 4 << 30}
    assert figures(item) == "4012 gb/s +- 3 (once, 4096 MiB)"


GOOD = {
    "schema_version": SCHEMA_VERSION, "verdict": "pass", "started": "2026-01-01T00:00:00Z", "duration_s": 1.0,
    "expect": {"gpu": "none", "architectures": [], "devices": None}, "facts": {}, "probes": [],
    "measurements": [{"id": "a.b", "status": "pass", "seen": "", "advice": "", "median_s": 1.0, "mad_s": 0.1,
                      "samples_s": [0.9, 1.0, 1.1], "repeats": 3,
                      "correctness": {"check": "c", "value": 1, "limit": 1, "ok": True}}],
}  # fmt: skip
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def test_schema_accepts_a_report() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    CHECK.validate(GOOD)


@pytest.mark.parametrize("key", GOOD)
def test_schema_requires_every_field(key: str) -> None:
    assert not CHECK.is_valid({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize("key", ["median_s", "mad_s", "samples_s", "repeats", "correctness", "advice"])
def test_schema_requires_fields_of_a_measurement(key: str) -> None:
    measurement = {k: v for k, v in GOOD["measurements"][0].items() if k != key}  # type: ignore[index]
    assert not CHECK.is_valid({**GOOD, "measurements": [measurement]})


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema_version", 1), ("verdict", "fine"), ("started", "today"), ("more", 1), ("duration_s", -1)],
)
def test_schema_refuses_other_values(key: str, value: object) -> None:
    assert not CHECK.is_valid({**GOOD, key: value})
