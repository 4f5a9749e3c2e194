"""The HTML page: its content, that it escapes all text of reports, and that it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from builder.deliver.history import History, ImageRecord
from builder.deliver.smoke.page import axis_top, view
from builder.deliver.smoke.reports import StoredReport
from tests.support.page import page
from tests.support.reports import DIGEST, a100, cpu, measured, months, report


def test_slower() -> None:
    """A slower figure is named with the packages that changed, and has the first trend."""
    stored = months({}, {}, {"matmul.bf16": 0.85})
    seen = view("a100", stored, ())
    assert seen.slower == ("matmul.bf16",) and seen.verdict == "pass"
    first, *others = seen.trends
    assert (first.change.id, first.change.outcome) == ("matmul.bf16", "slower")
    assert [label for label, _, _ in first.figures] == ["26.08", "26.09", "26.10"]
    assert [trend.change.outcome for trend in others] == ["same"] * 6
    html, text = page({"a100": (stored, ())})
    points = re.findall(r'points="(.*?)"', html)[0].split()
    assert [point.partition(",")[0] for point in points] == ["84.0", "173.0", "262.0"]
    heights = [float(point.partition(",")[2]) for point in points]
    assert heights[2] > heights[1], "lower on the page: y grows downwards"
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


def cpu_runs(count: int, digit: str, triad: float = 1.0, day: int = 1) -> list[StoredReport]:
    """Runs of one image on a CPU, each on its own day."""
    digest, scale = "sha256:" + digit * 64, {"memory.triad": triad}
    return [
        StoredReport(
            cpu(scale, noise=0.0, digest=digest, tag="26.11", started=f"2026-11-{day + n:02}T00:00:00Z"),
            digit,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(("runs", "judged"), [(4, False), (5, True)])
def test_too_few_runs(runs: int, judged: bool) -> None:
    """A figure of a CPU is judged when five runs of the image before say what is usual."""
    stored = [*cpu_runs(runs, "a"), *cpu_runs(2, "b", triad=7.0, day=10)]
    html, text = page({"cpu": (stored, ())})
    assert ("likely causes first" in text or "Changed against 26.11 aaaaaa" in text) == judged
    assert (f"{runs} of 5 runs: no judgement yet" in text) != judged
    assert ('class="unjudged"' in html) != judged and ("+600 %" in text) == judged
    assert "420 GB/s, median of 2 runs" in text


def test_axis() -> None:
    """Each trend has an axis from 0, and what its drawing shows as text: each image's median."""
    html, text = page({"cpu": ([*cpu_runs(2, "a"), *cpu_runs(1, "b", triad=7.0, day=10)], ())})
    triad = next(svg for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL) if "memory.triad" in svg)
    assert re.findall(r">([^<>]*)</text>", triad) == [
        "0",
        "300 GB/s",
        "600 GB/s",
        "26.11 aaaaaa",
        "26.11 bbbbbb",
    ]
    assert "<title>memory.triad: from 60.0 GB/s, median of 2 runs to 420 GB/s</title>" in triad
    assert "<desc>26.11 aaaaaa: 60.0 GB/s, median of 2 runs; 26.11 bbbbbb: 420 GB/s</desc>" in triad
    assert 'points="84.0,60.4 262.0,26.8 "' in triad, "66 - 56 * value / 600"
    flat = next(svg for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL) if "matmul.fp32" in svg)
    assert 'points="84.0,17.0 262.0,17.0 "' in flat


@pytest.mark.parametrize(
    ("values", "top"),
    [
        ([], 1),
        ([0.0], 1),
        ([1.0], 1),
        ([1.01], 2),
        ([37.2], 40),
        ([410.0, 9.0], 600),
        ([0.013], 0.02),
        ([999], 1000),
    ],
)
def test_axis_top(values: list[float], top: float) -> None:
    """An axis ends at a round number whose half is round."""
    assert axis_top(values) == pytest.approx(top)


def test_userns() -> None:
    """The name of builder's own runner is explained; that of another is not."""
    made = [StoredReport(a100(runner=runner), "x") for runner in ("userns", "docker")]
    assert "user namespaces: builder" in page({"a": (made[:1], ())})[0]
    assert "user namespaces" not in page({"a": (made[1:], ())})[0]


def image(
    number: int, tags: tuple[str, ...], torch: tuple[str, int], title: str = "pip torch"
) -> ImageRecord:
    layers = (
        ("FROM debian", "sha256:b", 50_000_000),
        (f"builder: {title} 2.12", f"sha256:{torch[0]}", torch[1]),
        *((f"builder: pip p{n:02} 1", f"sha256:p{n}", 1000 * n) for n in range(1, 14)),
    )
    size, built = sum(layer[2] for layer in layers), f"2026-{number:02}-01 08:00:00+00:00"
    return ImageRecord(
        f"sha256:{number:x}" + "0" * 63, built, size, layers, {"base": 2.0, "layers": 7.25}, tags
    )


def test_pictures() -> None:
    """Layers with what is shared, sizes of releases, two columns, and seconds by stage, with their axes."""
    old, new = image(9, ("26.09", "latest"), ("t", 200_000_000)), image(11, ("26.11",), ("u", 210_000_000))
    html, text = page({"a100": (months({}), ())}, {"a100": History.of([old, new])})
    assert "26.11 has 260.1 MB in 15 layers, compared with 26.09" in text
    assert "published, built 2026-09-01 08:00 UTC" in text
    assert "50.1 MB are in both, an update downloads 210.0 MB." in text
    assert 'aria-label="26.09: 250.1 MB in 15 layers"' in html
    assert (
        '<span class="new" style="flex-grow: 210000000" title="pip torch: 210.0 MB">pip torch</span>' in html
    )
    assert (
        '<span class="gone" style="flex-grow: 200000000" title="pip torch: 200.0 MB">pip torch</span>' in html
    )
    assert html.count('<span class="shared" style="flex-grow: 50000000" title="base: 50.0 MB">') == 2
    assert "layer pip torch new 210.0 MB base shared 50.0 MB pip p13 shared 13.0 kB" in text
    assert "0 200.0 MB 400.0 MB 3 smaller layers, 6.0 kB layer pip p03 shared 3.0 kB" in text
    assert '<i class="new" style="width: 52.5%">' in html, "210 of 400 MB"
    size = "26.09 built 2026-09-01 08:00 250.1 MB 26.11 built 2026-11-01 08:00 260.1 MB 0 200.0 MB 400.0 MB"
    assert size in text
    assert "9.2 s for the first build of 26.11" in text and "base 2.0 s layers 7.2 s 0 4.0 s 8.0 s" in text


def test_one_image_picture() -> None:
    """Without another image the page says so, and draws no second column; a target needs no smoke test."""
    html, text = page({"t": ([], ())}, {"t": History.of([image(9, (), ("t", 200_000_000))])})
    assert "Not tested yet: builder smoke t" in text
    assert "2026-09-01 has 250.1 MB in 15 layers. No earlier image of this target was built" in text
    assert '<div class="columns">' not in html and "shared" not in text and "not published 250.1 MB" in text


def test_sif_picture() -> None:
    """An image without layers and seconds has its size alone."""
    bare = ImageRecord(DIGEST, "2026-11-01 08:00:00+00:00", 7000, (), {})
    _, text = page({"t": ([], ())}, {"t": History.of([bare])})
    assert "has 7.0 kB in 0 layers" in text and "0 4.0 kB 8.0 kB" in text and "Build time" not in text


def test_hostile_names() -> None:
    """Titles of layers, tags and stages are text."""
    evil = "</span><script>alert(1)</script>\"'{{7*7}}"
    old, new = image(9, (evil,), ("t", 200_000_000)), image(11, (evil,), ("u", 210_000_000), title=evil)
    history = History.of([old, replace(new, seconds={evil: 1.0})])
    html, text = page({"t": ([], ())}, {"t": history})
    assert "<script" not in html and text.count("{{7*7}}") > 5
