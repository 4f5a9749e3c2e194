"""The HTML page in a real browser: light and dark, on a phone, without network and script.

What the unit tests cannot see: contrast, text that is too small, and elements that overlap or do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.deliver.history import History, ImageRecord
from builder.deliver.smoke.grade import grade
from builder.deliver.smoke.page import render, view
from builder.deliver.smoke.reference import references
from builder.deliver.smoke.reports import StoredReport
from builder.lock.config.site import Gpu
from tests.support.chromium import Chromium, chromium
from tests.support.reports import A100_40, a100, cpu, ranked

pytestmark = pytest.mark.heavy

PACKAGES = {"torch (pip)": "2.13.0", "nvidia-cublas-cu12 (pip)": "12.8.4.1", "zlib": "1.3.1 h4"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as running:
        yield running


def image(month: int) -> ImageRecord:
    """An image of a month: the last one has another torch, and a layer with a long name."""
    layers = [("FROM debian", "sha256:b", 50_000_000), ("builder: pip torch 2.12", "sha256:t", 200_000_000)]
    if month == 11:
        layers[1] = ("builder: pip torch 2.13", "sha256:u", 210_000_000)
        layers.append((f"builder: {'step-with-a-long-name-' * 4}", "sha256:s", 30_000_000))
    layers += [(f"builder: pip p{n:02} 1", f"sha256:p{n}", 1000 * n) for n in range(1, 60)]
    size, tags = sum(layer[2] for layer in layers), (f"26.{month:02}", "latest")
    built, seconds = f"2026-{month:02}-01 08:00:00+00:00", {"base": 2.0, "layers": 41.5, "image": 0.04}
    return ImageRecord(f"sha256:{month:064x}", built, size, tuple(layers), seconds, tags)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three months of an A100 node, the last one slower; two of a CPU; a target without reports."""
    node: list[StoredReport] = []
    for month, slow in ((9, 248e3), (10, 247e3), (11, 212e3)):
        devices = [{**A100_40, "rank": i, "host": "n017", "uuid": f"GPU-{i}"} for i in range(4)]
        state = {"clock_mhz": 1290, "power_w": 398.4, "temperature_c": 64, "throttled": ["power cap"]}
        packages = (
            {**PACKAGES, "nvidia-cublas-cu12 (pip)": "12.9.0.2", "<b>x</b>": "1"} if month == 11 else PACKAGES
        )
        made = a100(
            seed=month,
            digest=f"sha256:{month:064x}",
            started=f"2026-{month:02}-01T06:00:00Z",
            tag=f"26.{month:02}",
            packages=packages,
            devices=devices,
            ranks=4,
            target="perlmutter",
        )
        others = [m for m in made["measurements"] if m["id"] != "matmul.bf16"]
        for m in others:
            if m["id"].startswith("matmul"):
                m["size"] = 8192
        bf16 = ranked("matmul.bf16", (slow, slow, 0.8 * slow, slow), size=8192, backend="flash")
        made["measurements"] = [bf16, *others]
        for m in made["measurements"] if month > 9 else []:
            m.update(state)
        made = grade(made, references(), Gpu(vendor="nvidia", architectures=("sm_80",)), 4)
        node.append(StoredReport(made, f"{month}.json"))
    machine = [
        StoredReport(
            grade(
                cpu(seed=n, digest=f"sha256:{n:064x}", tag=f"26.{n}", started=f"2026-{n}-01T00:00:00Z"),
                references(),
                Gpu(),
            ),
            str(n),
        )
        for n in (10, 11)
    ]
    views = [
        view("perlmutter", node, ("old.json: schema version 1",)),
        view("cpu", machine, ()),
    ]
    path = tmp_path_factory.mktemp("page") / "index.html"
    images = [image(month) for month in (9, 10, 11)]
    histories = {"perlmutter": History.of(images), "lumi-g": History.of(images[:1])}
    path.write_text(render(views, {"lumi-g": ()}, made="2026-11-21 09:00 UTC", histories=histories))
    return path


def text(browser: Chromium, selector: str) -> list[str]:
    """The rendered text of elements."""
    return [
        " ".join(t.split())
        for t in browser.ask(
            f"[...document.querySelectorAll({selector!r})].map(e => e.innerText || e.textContent)"
        )
    ]


def test_content(browser: Chromium, page: Path, tmp_path: Path) -> None:
    """The page names the regression and loads nothing."""
    browser.show(page)
    assert browser.fetched == [page.as_uri()] and browser.messages == []
    assert browser.ask("document.scripts.length + document.images.length") == 0
    assert text(browser, "section h2") == ["perlmutter", "cpu", "lumi-g"]
    alert = text(browser, ".alert.note")[0]
    assert alert.startswith("Changed against 26.10") and "matmul.bf16: 247 TFLOP/s -> 212 TFLOP/s" in alert
    assert "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2" in alert and "<b>x</b> (none) -> 1" in alert
    assert any("1,290 MHz, 398 W, 64 °C" in row for row in text(browser, "td.seen"))
    assert "WARN" in text(browser, "#perlmutter .head")[0] and "PASS" in text(browser, "#cpu .head")[0]
    assert any(
        "4 x NVIDIA A100-SXM4-40GB typically reach it" in row for row in text(browser, "#perlmutter td.seen")
    )
    assert len(browser.screenshot(tmp_path / "light.png")) > 50_000


def test_columns(browser: Chromium, page: Path) -> None:
    """The columns of two images, and the parts in them, are as high as their bytes say."""
    browser.show(page)
    heights = browser.ask(
        "[...document.querySelectorAll('#perlmutter .column')].map(c => [c.offsetHeight, "
        "...[...c.children].slice(0, 2).map(part => part.offsetHeight)])"
    )
    assert [column[0] for column in heights] == [
        pytest.approx(320 * size / 291.8, abs=2) for size in (251.8, 291.8)
    ]
    for (_, base, torch), size in zip(heights, (200, 210), strict=True):
        assert torch / base == pytest.approx(size / 50, rel=0.1)
    bars = browser.ask(
        "[...document.querySelectorAll('#perlmutter .bars')][0].querySelectorAll('i')[0].offsetWidth / "
        "document.querySelector('#perlmutter .axis').offsetWidth"
    )
    assert bars == pytest.approx(210 / 400, abs=0.01)


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)`` (WCAG 2)."""
    parts = [float(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


#: For every element with text: its color, and the nearest background below it.
COLOURS = """
[...document.querySelectorAll('main *')]
.filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && e.getClientRects().length)
.map(e => {
  const own = getComputedStyle(e), svg = e.closest('svg');
  let at = e, back = 'rgba(0, 0, 0, 0)';
  while (at && /, 0\\)$/.test(back)) { back = getComputedStyle(at).backgroundColor; at = at.parentElement; }
  return [e.tagName + '.' + (e.className.baseVal ?? e.className), svg ? own.fill : own.color, back];
}).filter(Boolean)
"""
#: Elements that reach beyond the right edge of the page, except in tables that scroll.
TOO_WIDE = """
[...document.querySelectorAll('main *')]
.filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)
.map(e => e.tagName + '.' + e.className)
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(browser: Chromium, page: Path, tmp_path: Path, dark: bool) -> None:
    """All text has a contrast of at least 4.5 (WCAG 2, level AA), in light and in dark."""
    browser.show(page, dark=dark)
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.05) == dark
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen = browser.ask(COLOURS)
    assert len(seen) > 150
    poor = set()
    for name, front, back in seen:
        light, deep = sorted((luminance(front), luminance(back)), reverse=True)
        if (light + 0.05) / (deep + 0.05) < 4.5:  # WCAG 2, level AA
            poor.add((name, front, back))
    assert not poor
    assert len(browser.screenshot(tmp_path / "page.png")) > 50_000


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_widths(browser: Chromium, page: Path, width: int) -> None:
    """The page fits phones and desktops."""
    browser.show(page, width=width)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(TOO_WIDE) == []
