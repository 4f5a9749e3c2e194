"""The data of the HTML page: images, trends and grades."""

from __future__ import annotations

from builder.smoke.reference import references
from builder.smoke.reports import StoredReport
from builder.smoke.view import ensure_graded, view
from tests.support.page import page
from tests.support.reports import A100_40, STRANGE, a100, cpu, months, ranked, report


def test_error_after_pass() -> None:
    """The verdict is that of the newest run; trends use the completed runs."""
    before = StoredReport(a100(started="2026-10-01T00:00:00Z", digest="sha256:" + "2" * 64), "before")
    good = StoredReport(a100(started="2026-11-01T00:00:00Z"), "good")
    error = StoredReport(
        report([], verdict="error", probes=(("watchdog", "fail"),), started="2026-11-02T00:00:00Z"), "error"
    )
    seen = view("a100", [before, good, error], (), references())
    assert (
        seen.verdict == "error" and len(seen.images) == 2 and len(seen.trends) == 7
    )  # what was measured before stays
    assert "what watchdog saw" in page({"a100": ([good, error], ())})[1]


def test_one_image() -> None:
    """One image has no trends: a dot is none."""
    runs = [StoredReport(a100(seed=n), str(n)) for n in (1, 2)]
    assert view("a100", runs, (), references()).trends == ()


def test_spread() -> None:
    """The runs of one image are one point with their spread."""
    stored = []
    for n, factor in enumerate((1.0, 0.98, 1.02)):
        stored.append(
            StoredReport(a100({"matmul.fp32": factor}, seed=n, started=f"2026-11-0{n + 1}T00:00:00Z"), str(n))
        )
    before = StoredReport(a100(started="2026-10-01T00:00:00Z", digest="sha256:" + "2" * 64), "before")
    seen = view("a100", [before, *stored], (), references())
    (trend,) = [t for t in seen.trends if t.id == "matmul.fp32"]
    first, point = trend.points
    assert point.low > point.y > point.high and "3 run(s)" in point.tip
    for drawn in (first, point):  # the values are printed outside of the spread
        assert drawn.text_y < drawn.high or drawn.text_y > drawn.low
    _, text = page({"a100": (stored, ())})
    assert "Images" not in text.split("Probes")[1]


def test_other_machine() -> None:
    """A line ends where the machine changes."""
    stored = months({}, {}, {}, {})
    for k in stored[2:]:
        k.report["facts"]["devices"] = [STRANGE]
    (trend,) = [t for t in view("a100", stored, (), references()).trends if t.id == "matmul.fp32"]
    assert len(trend.lines) == 2 and [p.state for p in trend.points] == ["", "same", "other", "same"]
    assert "not comparable" in page({"a100": (stored, ())})[1]


def test_busy_machine() -> None:
    """If other programs disturbed everything, nothing is known to be unchanged."""
    stored = months({}, {})
    stored[1].report["probes"] = [{"id": "gpu.idle", "status": "warn", "seen": "", "advice": ""}]
    (_, row) = reversed(view("a100", stored, (), references()).rows)
    assert row.summary == "not comparable"


def test_many_gpus() -> None:
    """Of many GPUs only the first one has a trend, and the ones that changed."""

    def eight(slow: float, n: int) -> StoredReport:
        devices = [{**A100_40, "rank": i, "uuid": f"GPU-{i}"} for i in range(8)]
        made = report(
            [ranked("matmul.bf16", [248e3] * 5 + [slow] + [248e3] * 2)],
            devices=devices,
            ranks=8,
            digest=f"sha256:{n}" + "0" * 63,
            started=f"2026-1{n}-01T00:00:00Z",
        )
        return StoredReport(made, str(n))

    seen = view("a100", [eight(248e3, 0), eight(190e3, 1)], (), references())
    assert [(t.device, t.state) for t in seen.trends] == [("rank 5", "slower"), ("rank 0", "same")]
    assert seen.machines[0] == "8 x NVIDIA A100-SXM4-40GB" and seen.findings[0]["status"] in ("warn", "fail")


def test_labels() -> None:
    """Images with the same tag have different labels."""
    stored = months({}, {})
    for k in stored:
        k.report["image"]["tag"] = "26.11"
    labels = [i.label for i in view("a100", stored, (), references()).images]
    assert labels == ["26.11 0000", "26.11 1000"]


def test_ensure_graded() -> None:
    """A report without a grade is graded by the hardware that it expects."""
    bare = StoredReport(a100({"matmul.bf16": 0.3}), "x")
    assert "grade" not in bare.report
    assert ensure_graded(bare, references()).report["verdict"] == "fail"
    on_cpu = StoredReport(
        {**cpu(), "expect": {"gpu": "nvidia", "architectures": ["sm_80"], "devices": None}}, "x"
    )
    assert ensure_graded(on_cpu, references()).report["verdict"] == "fail"
    assert (
        ensure_graded(StoredReport({**a100(), "expect": None}, "x"), references()).report["verdict"] == "pass"
    )
