"""The HTML page: its content, that it escapes all text of reports, and that it loads nothing."""

from __future__ import annotations

import re

from builder.deliver.smoke.page import view
from builder.deliver.smoke.reports import StoredReport
from tests.support.page import page
from tests.support.reports import DIGEST, a100, measured, months, report


def test_slower() -> None:
    """A slower figure is named with the packages that changed, and has the first trend."""
    stored = months({}, {}, {"matmul.bf16": 0.85})
    seen = view("a100", stored, ())
    assert seen.slower == ("matmul.bf16",) and seen.verdict == "pass"
    first, *others = seen.trends
    assert (first.id, first.outcome, len(first.points.split())) == ("matmul.bf16", "slower", 3)
    heights = [float(point.partition(",")[2]) for point in first.points.split()]
    assert heights[2] > heights[1], "lower on the page: y grows downwards"
    assert [trend.outcome for trend in others] == ["same"] * 6
    html, text = page({"a100": (stored, ())})
    assert "1 slower than usual" in text and "Changed against 26.09" in text and "--ab OLD NEW" in text
    assert "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2" in text and '<li class="likely">nvidia' in html
    assert html.count("<polyline") == 7 and "zlib" not in text


def test_escaping() -> None:
    """Markup and template code in a report stay text."""
    evil = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}{% raw %}"
    made = a100(
        tag=evil,
        packages={evil: evil},
        target=evil,
        probes=((f"x.{evil}", "fail"), ("y", "warn")),
        verdict="fail",
        cpu=evil,
    )
    made["probes"][0]["seen"] = made["probes"][0]["advice"] = evil
    made["measurements"].append(measured(evil, 3.0, "ms", device=evil))
    made["image"]["runner"] = made["image"]["digest"] = evil
    made["facts"]["devices"][0] |= dict.fromkeys(("name", "uuid", "driver"), evil)
    made["measurements"][0] |= {"throttled": [evil], "backend": evil, "algorithm": evil, "clock_mhz": evil}
    older = a100(digest="sha256:" + "9" * 64, packages={evil: "0"}, started="2026-01-01T00:00:00Z")
    html, text = page(
        {evil: ([StoredReport(older, evil), StoredReport(made, evil)], (evil,)), "other": ([], (evil,))}
    )
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;alert(1)" in html
    assert "49" not in re.findall(r"\{\{7\*7\}\}|49", text) and "{{7*7}}" in text


def test_unreadable_and_untested() -> None:
    """The page lists unreadable reports and targets without reports."""
    _, text = page(
        {
            "a100": (months({}), ("old.json: a report of schema version 1, not 2",)),
            "b": ([], ()),
            "c": ([], ("x.json: not JSON",)),
        }
    )
    assert "Reports that cannot be read" in text and "schema version 1" in text
    assert "Not tested yet: builder smoke b" in text and "x.json: not JSON" in text


def test_error() -> None:
    """A test that could not be run is shown as an error."""
    error = report(
        [],
        verdict="error",
        probes=(("runner", "fail"),),
        started="2026-12-01T00:00:00Z",
        digest="sha256:" + "e" * 64,
    )
    html, text = page({"a100": ([*months({}), StoredReport(error, "e")], ())})
    assert (
        "ERROR" in text
        and "runner : what runner saw" in text.replace("runner:", "runner :")
        and "badge error" in html
    )


def test_many_images() -> None:
    """The page shows the newest twelve images."""
    stored = [
        StoredReport(
            a100(
                digest=f"sha256:{n:064x}",
                started=f"20{20 + n // 12}-{n % 12 + 1:02}-01T00:00:00Z",
                tag=f"{20 + n // 12}.{n % 12 + 1:02}",
            ),
            str(n),
        )
        for n in range(30)
    ]
    seen = view("a100", stored, ())
    assert len(seen.images) == 12 and seen.images[-1].label == "22.06"
    html, _ = page({"a100": (stored, ())})
    assert len(html) < 300_000


def test_one_image() -> None:
    """One image: no trends, the warnings come first, and figures of the last run are called so."""
    made = months({}, {})
    made = [
        StoredReport({**one.report, "verdict": "warn", "image": {"digest": DIGEST}}, one.source)
        for one in made
    ]
    made[-1].report["probes"][0] |= {"status": "warn", "seen": "an old driver", "advice": "renew it"}
    text, _ = page({"a100": (made, ())})
    assert "from 1 image of 1 target." in " ".join(text.split())
    assert "<h3>Trends" not in text and "Trends appear here when a second image was tested" in text
    assert text.index("1 warning<") < text.index("an old driver") < text.index("Compared with what")
    assert "warnings do not stop publishing" in text
