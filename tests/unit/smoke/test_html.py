"""The HTML page: its content, that it escapes all text of reports, and that it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from builder.smoke import compare as compare_module
from builder.smoke.grade import Expected, grade
from builder.smoke.reference import references
from builder.smoke.reports import StoredReport
from builder.smoke.view import view
from tests.support.page import page
from tests.support.reports import A100_40, a100, cpu, measured, months, ranked, report


def test_regression() -> None:
    """A regression is drawn, and named with the packages that changed."""
    stored = months({}, {}, {"matmul.bf16": 0.85})
    seen = view("a100", stored, (), references())
    assert (
        [c.id for c in seen.regressions] == ["matmul.bf16"]
        and seen.against == "26.09"
        and seen.verdict == "pass"
    )
    first = seen.trends[0]
    assert (first.id, first.state) == ("matmul.bf16", "slower") and first.change in ("14%", "15%", "16%")
    assert [p.label for p in first.points] == ["26.08", "26.09", "26.10"] and [
        p.state for p in first.points
    ] == [
        "",
        "same",
        "slower",
    ]
    assert first.points[2].y > first.points[1].y  # lower on the page: y grows downwards
    assert [t.state for t in seen.trends[1:]] == ["same"] * 6
    html, text = page({"a100": (stored, ())})
    assert "1 slower than 26.09" in text and "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2" in text
    assert (
        '<figure class="slower">' in html
        and 'class="dot slower"' in html
        and '<li class="likely">nvidia' in html
    )
    assert "zlib" not in text  # it did not change


def test_no_regression() -> None:
    """Without regressions the page has no alert."""
    html, text = page({"a100": (months({}, {}), ())})
    assert "slower than" not in text and 'class="alert"' not in html and "unchanged" in text


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


def gpu_state(month: int, uuid: str, driver: str, **more: Any) -> StoredReport:
    """A graded report with the state of the GPU beside each figure."""
    made = a100(
        {"matmul.bf16": more.pop("bf16", 1.0)},
        seed=month,
        digest=f"sha256:{month:064x}",
        tag=f"26.{month}",
        started=f"2026-{month}-01T06:00:00Z",
        devices=[{**A100_40, "uuid": f"GPU-{uuid}-0000", "driver": driver, "power_limit_w": 400.0}],
        packages={"torch": "2.13.0"},
    )
    for item in made["measurements"]:
        item |= {"clock_mhz": 1290.0, "power_w": 398.4, "temperature_c": 64, "throttled": [], **more}
    made = grade(made, references(), Expected("nvidia", ("sm_80",)))
    bf16 = next(f for f in made["grade"]["findings"] if f["id"] == "matmul.bf16")
    made["grade"]["findings"].append({**bf16, "basis": "site", "fraction": 0.97})
    return StoredReport(made, f"{month}.json")


def test_gpu_figures() -> None:
    """Beside each figure: clock, power, heat, what limits the clock, and the references."""
    more = {"sustained_gflop_per_s": 240e3, "burst_gflop_per_s": 262e3, "size": 8192, "backend": "flash"}
    made = gpu_state(11, "aa", "580.82", **more)
    made.report["measurements"][3]["throttled"] = ["power cap"]
    _, text = page({"a100": ([made], ())})
    for part in ("1,290 MHz", "398 W", "64 °C", "size 8,192, flash", "262 at first, 240 sustained"):
        assert part in text, part
    assert "% of published" in text and "97 % of this site" in text
    assert "power cap" in text and "not throttled" in text and "older version" not in text


def test_gpu_figures_of_ranks() -> None:
    """Of several GPUs the slowest one is shown, with the range of clocks."""
    made = report(
        [ranked("matmul.bf16", (248e3, 236e3))], devices=[{**A100_40, "rank": n} for n in range(2)], ranks=2
    )
    for number, rank in enumerate(made["measurements"][0]["ranks"]):
        rank["clock_mhz"] = 1290 - 60 * number
    _, text = page({"a100": ([StoredReport(made, "x")], ())})
    assert "236 TFLOP/s slowest of 2, fastest 248 TFLOP/s" in text and "1,230 to 1,290 MHz" in text


def test_old_report() -> None:
    """A report without clocks, uuid and site has no empty columns."""
    _, text = page({"a100": (months({}, {"matmul.bf16": 0.85}), ())})
    assert "GPU figures" in text and "no clocks and power" in text and "throttled by" not in text
    assert "this site" not in text and "GPU not known: a report does not identify it" in text
    assert "GPU figures" not in page({"cpu": ([StoredReport(cpu(), "x")], ())})[1]


def test_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slower because of the host or of files is named, and is no regression."""
    real = compare_module.compare

    def compared(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        slow: Any = "host"
        return replace(found, changes=(replace(found.changes[0], outcome=slow), *found.changes[1:]))

    monkeypatch.setattr("builder.smoke.view.compare", compared)
    html, text = page({"a100": (months({}, {}), ())})
    assert "slower, but not counted: " in text and 'role="alert"' not in html


def test_causes() -> None:
    """Where something is slower, the page names which of GPU, driver, image and packages changed."""
    before = gpu_state(10, "aa11", "570.86")
    _, text = page({"a100": ([before, gpu_state(11, "bb22", "580.82", bf16=0.85)], ())})
    assert "GPU another one of the same model (aa11-000 → bb22-000)" in text
    assert "power limit the same (400 W)" in text and "driver 570.86 → 580.82" in text
    assert "image another one" in text and "packages the same" in text
    assert "differs: GPU another one of the same model (aa11-000 → bb22-000); driver 570.86 → 580.82" in text
    _, text = page({"a100": ([before, gpu_state(11, "aa11", "570.86", bf16=0.85)], ())})
    assert "GPU the same" in text and "driver the same (570.86)" in text and "differs" not in text


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


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {}},
        {"facts": {"devices": None, "cpu": None}},
        {"facts": {"devices": ["x"]}},
        {"launch": None},
        {"grade": None},
        {"image": {}},
    ],
)
def test_sparse_reports(change: dict[str, Any]) -> None:
    """Reports with few facts still have a page."""
    page(
        {
            "a100": (
                [
                    StoredReport({**a100(), **change}, "x"),
                    StoredReport({**a100(started="2026-12-01T00:00:00Z"), **change}, "y"),
                ],
                (),
            )
        }
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
    seen = view("a100", stored, (), references())
    assert len(seen.images) == 12 and seen.images[-1].label == "22.06"
    html, _ = page({"a100": (stored, ())})
    assert len(html) < 300_000


def test_one_image() -> None:
    """One image: no trends, the warnings come first, and figures of the last run are called so."""
    made = [StoredReport({**a100(seed=n), "verdict": "warn"}, str(n)) for n in (1, 2)]
    made[-1].report["probes"][0] |= {"status": "warn", "seen": "an old driver", "advice": "renew it"}
    text, _ = page({"a100": (made, ())})
    assert "from 1 image of 1 target." in " ".join(text.split())
    assert "<h3>Trends" not in text and "Trends appear here when a second image was tested" in text
    assert "the last of 2 runs<" in text
    assert text.index("1 warning<") < text.index("an old driver") < text.index("Compared with what")
    assert "warnings do not stop publishing" in text
