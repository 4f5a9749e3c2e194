"""The report's page: what it says, that nothing of a report gets out of its text, and that it needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from builder.smoke.grade import Expected, grade, references
from builder.smoke.history import Kept
from builder.smoke.html import ensure_graded, render, roofline, view
from tests.support.reports import A100_40, STRANGE, a100, cpu, measured, ranked, report

PACKAGES = {"torch (pip)": "2.13.0", "nvidia-cublas-cu12 (pip)": "12.8.4.1", "zlib": "1.3.1 h4"}
VOID = {"meta", "br", "line", "circle", "polyline", "link", "img"}


class Checked(HTMLParser):
    """Every element is closed, none is of a kind that the page does not use, no attribute loads or runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name not in (
                "src",
                "srcset",
                "action",
                "formaction",
                "xlink:href",
            ), (tag, name)
            assert name != "href" or (value or "").startswith("#"), value
            assert name != "style" or "url" not in (value or ""), value
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("tr", "td", "th", "li", "p") and self.open[-1] != tag:
            while self.open[-1] in ("td", "th", "li", "p"):
                self.open.pop()
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def page(targets: Any, **more: Any) -> tuple[str, str]:
    """The page, and its text with single blanks; checks what holds for every page."""
    html = render(targets, references(), made="2026-11-21 09:00 UTC")
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert not parser.open and not parser.seen & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "img",
        "form",
        "base",
    }
    assert (
        "default-src 'none'" in html and "prefers-color-scheme: dark" in html and "width=device-width" in html
    )
    assert (
        not re.search(r"(https?:)?//[a-z]", re.sub(r"<title>.*?</title>", "", html))
        and "NaN" not in html
        and "nan" not in html.split("</style>")[1]
    )
    return html, " ".join(" ".join(parser.text).split())


def months(*scales: dict[str, float], target: str = "a100", **more: Any) -> list[Kept]:
    """A report a month, graded; the last with changed packages."""
    out = []
    for n, scale in enumerate(scales):
        packages = {**PACKAGES, "nvidia-cublas-cu12 (pip)": "12.9.0.2"} if n == len(scales) - 1 else PACKAGES
        made = a100(
            scale,
            seed=n,
            digest=f"sha256:{n:x}" + "0" * 63,
            started=f"2026-{n + 8:02}-01T06:00:00Z",
            tag=f"26.{n + 8:02}",
            packages=packages,
            target=target,
            **more,
        )
        out.append(Kept(grade(made, references(), Expected("nvidia", ("sm_80",))), f"{target}-{n}.json"))
    return out


def test_a_planted_regression_is_named_with_its_packages_and_drawn() -> None:
    kept = months({}, {}, {"matmul.bf16": 0.85})
    seen = view("a100", kept, (), references())
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
    assert first.points[2].y > first.points[1].y  # lower on the page
    assert [t.state for t in seen.trends[1:]] == ["same"] * 6
    html, text = page({"a100": (kept, ())})
    assert "1 slower than 26.09" in text and "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2" in text
    assert (
        '<figure class="slower">' in html
        and 'class="dot slower"' in html
        and '<li class="likely">nvidia' in html
    )
    assert "zlib" not in text  # did not change


def test_without_regressions_nothing_is_alarming() -> None:
    html, text = page({"a100": (months({}, {}), ())})
    assert "slower than" not in text and 'class="alert"' not in html and "the same" in text


def test_hostile_text_stays_text() -> None:
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
    made["facts"]["devices"][0]["name"] = evil
    older = a100(digest="sha256:" + "9" * 64, packages={evil: "0"}, started="2026-01-01T00:00:00Z")
    html, text = page({evil: ([Kept(older, evil), Kept(made, evil)], (evil,)), "other": ([], (evil,))})
    assert "<script" not in html and "<img" not in html and "&lt;script&gt;alert(1)" in html
    assert "49" not in re.findall(r"\{\{7\*7\}\}|49", text) and "{{7*7}}" in text


def test_what_cannot_be_read_and_what_was_not_tested_is_said() -> None:
    _, text = page(
        {
            "a100": (months({}), ("old.json: a report of schema version 1, not 2",)),
            "b": ([], ()),
            "c": ([], ("x.json: not JSON",)),
        }
    )
    assert "Reports that cannot be read" in text and "schema version 1" in text
    assert "Not tested yet: builder smoke b" in text and "x.json: not JSON" in text


def test_a_test_that_could_not_be_carried_out_is_no_pass() -> None:
    error = report(
        [],
        verdict="error",
        probes=(("runner", "fail"),),
        started="2026-12-01T00:00:00Z",
        digest="sha256:" + "e" * 64,
    )
    html, text = page({"a100": ([*months({}), Kept(error, "e")], ())})
    assert (
        "ERROR" in text
        and "runner : what runner saw" in text.replace("runner:", "runner :")
        and "badge error" in html
    )


def test_an_image_whose_last_test_could_not_be_carried_out_does_not_pass_any_more() -> None:
    good = Kept(a100(started="2026-11-01T00:00:00Z"), "good")
    error = Kept(
        report([], verdict="error", probes=(("watchdog", "fail"),), started="2026-11-02T00:00:00Z"), "error"
    )
    seen = view("a100", [good, error], (), references())
    assert (
        seen.verdict == "error" and len(seen.images) == 1 and len(seen.trends) == 7
    )  # what was measured before stays
    assert "what watchdog saw" in page({"a100": ([good, error], ())})[1]


def test_runs_of_one_image_are_one_point_with_their_spread() -> None:
    kept = []
    for n, factor in enumerate((1.0, 0.98, 1.02)):
        kept.append(
            Kept(a100({"matmul.fp32": factor}, seed=n, started=f"2026-11-0{n + 1}T00:00:00Z"), str(n))
        )
    (trend,) = [t for t in view("a100", kept, (), references()).trends if t.id == "matmul.fp32"]
    (point,) = trend.points
    assert point.low > point.y > point.high and "3 run(s)" in point.tip and not trend.lines
    _, text = page({"a100": (kept, ())})
    assert "Images" not in text.split("Probes")[1]


def test_another_machine_breaks_the_line() -> None:
    kept = months({}, {}, {}, {})
    for k in kept[2:]:
        k.report["facts"]["devices"] = [STRANGE]
    (trend,) = [t for t in view("a100", kept, (), references()).trends if t.id == "matmul.fp32"]
    assert len(trend.lines) == 2 and [p.state for p in trend.points] == ["", "same", "other", "same"]
    assert "another machine" in page({"a100": (kept, ())})[1]


def test_many_gpus_show_the_first_and_those_that_changed() -> None:
    def eight(slow: float, n: int) -> Kept:
        devices = [{**A100_40, "rank": i} for i in range(8)]
        made = report(
            [ranked("matmul.bf16", [248e3] * 5 + [slow] + [248e3] * 2)],
            devices=devices,
            ranks=8,
            digest=f"sha256:{n}" + "0" * 63,
            started=f"2026-1{n}-01T00:00:00Z",
        )
        return Kept(made, str(n))

    seen = view("a100", [eight(248e3, 0), eight(190e3, 1)], (), references())
    assert [(t.device, t.state) for t in seen.trends] == [("rank 5", "slower"), ("rank 0", "same")]
    assert seen.machines[0] == "8 x NVIDIA A100-SXM4-40GB" and seen.findings[0]["status"] in ("warn", "fail")


def test_two_images_of_one_tag_have_labels_of_their_own() -> None:
    kept = months({}, {})
    for k in kept:
        k.report["image"]["tag"] = "26.11"
    labels = [i.label for i in view("a100", kept, (), references()).images]
    assert labels == ["26.11 0000", "26.11 1000"]


def test_a_report_without_grade_gets_one_by_what_it_says_it_expected() -> None:
    bare = Kept(a100({"matmul.bf16": 0.3}), "x")
    assert "grade" not in bare.report
    assert ensure_graded(bare, references()).report["verdict"] == "fail"
    on_cpu = Kept({**cpu(), "expect": {"gpu": "nvidia", "architectures": ["sm_80"], "devices": None}}, "x")
    assert ensure_graded(on_cpu, references()).report["verdict"] == "fail"
    assert ensure_graded(Kept({**a100(), "expect": None}, "x"), references()).report["verdict"] == "pass"


def test_the_roofline_has_ceilings_and_its_points_below_them() -> None:
    made = a100()
    for m in made["measurements"]:
        if m["id"].startswith("matmul"):
            m["size"] = 8192
    drawn = roofline(made, references())
    assert drawn is not None and drawn.note == "NVIDIA A100 SXM4 40 GB"
    assert {c.label.split()[0] for c in drawn.ceilings} >= {"memory.triad", "memory", "fp32"}
    assert any(c.label == "fp16, bf16 peak 312 TFLOP/s" and c.kind == "paper" for c in drawn.ceilings)
    top = min(c.y for c in drawn.ceilings)
    left, above, right, below = drawn.margins
    for p in drawn.points:
        assert left <= p.x <= drawn.width - right and top < p.y < drawn.height - below
    ceiling = roofline(cpu(), references())
    assert ceiling is not None and [c.label for c in ceiling.ceilings if c.label.startswith("cpu.peak")] == [
        "cpu.peak 403 GFLOP/s"
    ]


@pytest.mark.parametrize(
    "gone", [["memory.triad", "memory.copy"], ["matmul.fp32", "conv.training", "attention"]]
)
def test_without_memory_or_without_products_there_is_no_roofline(gone: list[str]) -> None:
    made = cpu()
    made["measurements"] = [m for m in made["measurements"] if m["id"] not in gone]
    assert roofline(made, references()) is None
    page({"cpu": ([Kept(made, "x")], ())})


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
def test_reports_that_tell_little_still_give_a_page(change: dict[str, Any]) -> None:
    page(
        {
            "a100": (
                [
                    Kept({**a100(), **change}, "x"),
                    Kept({**a100(started="2026-12-01T00:00:00Z"), **change}, "y"),
                ],
                (),
            )
        }
    )


def test_many_months_show_the_newest() -> None:
    kept = [
        Kept(
            a100(
                digest=f"sha256:{n:064x}",
                started=f"20{20 + n // 12}-{n % 12 + 1:02}-01T00:00:00Z",
                tag=f"{20 + n // 12}.{n % 12 + 1:02}",
            ),
            str(n),
        )
        for n in range(30)
    ]
    seen = view("a100", kept, (), references())
    assert len(seen.images) == 12 and seen.images[-1].label == "22.06"
    html, _ = page({"a100": (kept, ())})
    assert len(html) < 300_000
