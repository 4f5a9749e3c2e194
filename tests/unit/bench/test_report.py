"""The verdict and the schema of a report."""

from __future__ import annotations

from builder.bench.report import figures, table, verdict


def test_nothing_measured_with_warnings() -> None:
    """Only skips and a warning of the time budget: that is no "warn", with which an image is published."""
    probe = {"id": "time.budget", "status": "warn"}
    skipped = {"id": "matmul.bf16", "status": "skip"}
    report = {"probes": [probe], "measurements": [skipped]}
    assert verdict(report) == "error"
    empty = {"id": "imports", "status": "warn"}
    assert verdict({**report, "measurements": [skipped, empty]}) == "error"
    slow = {"id": "attention", "status": "warn", "median_gflop_per_s": 1.0}
    assert verdict({**report, "measurements": [skipped, slow]}) == "warn"
    assert verdict({**report, "probes": [{**probe, "status": "fail"}]}) == "fail"


def test_table() -> None:
    probe = {"id": "gpu.visible", "status": "fail", "seen": "torch sees no GPU", "advice": "add --nv"}
    measured = {"id": "memory.copy", "status": "pass", "seen": "", "advice": ""}
    measured.update(median_gb_per_s=12.34, mad_gb_per_s=0.056, repeats=9, size=4096)
    shown = table({"probes": [probe], "measurements": [measured], "verdict": "fail", "duration_s": 1.25})
    assert shown.splitlines() == [
        "fail  gpu.visible            torch sees no GPU",
        "                             -> add --nv",
        "pass  memory.copy            12.34 GB/s +- 0.056 (9 times, size 4096)",
        "FAIL in 1.2 s",
    ]
    assert figures({"id": "x"}) == ""
    item = {"median_gflop_per_s": 7.93e5, "mad_gflop_per_s": 900.0, "repeats": 40, "size": 16384}
    assert figures(item) == "793 TFLOP/s +- 0.9 (40 times, size 16384)"
    item = {"median_gb_per_s": 4012.0, "mad_gb_per_s": 3.0, "repeats": 1, "size": 4 << 30}
    assert figures(item) == "4.012 TB/s +- 0.003 (once, 4096 MiB)"
