"""The table of a smoke report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from builder.smoke.compare import compare
from builder.smoke.reports import StoredReport
from builder.smoke.run import SmokeReport
from builder.smoke.schema import could_not_run
from builder.smoke.table import format_entry, render, render_comparison
from tests.support.image_kit import recipe
from tests.support.reports import SMALL, cpu, rich, with_site

RECIPE = recipe(gpu={"vendor": "nvidia", "architectures": ["sm_80", "sm_90"]})


def shown(report: Mapping[str, Any], **options: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    value = SmokeReport(report["verdict"], dict(report), "docker", "sha256:" + "0" * 64, 3.5)
    console.print(render(value, **options))
    return console.export_text()


def test_render() -> None:
    """The table has the verdict, the values and the advice. Text from the report is not markup."""
    text = shown(SMALL)
    assert (
        "pass in 3.5 s (docker)" in text
        and "83.81 GFLOP/s ± 6.6 (5 times, size 2,048)" in text
        and "not [here]" not in text
    )
    assert "not [here]" in shown(SMALL, skipped=True)
    text = " ".join(shown({**SMALL, "verdict": "warn"}).split())
    assert "A warning does not stop publishing" in text
    text = shown(could_not_run(RECIPE, "report", "said [bold]nothing[/bold]", "look"))
    assert "error" in text and "said [bold]nothing[/bold]" in text and "-> look" in text


def test_state_of_gpus() -> None:
    """Clock, power and heat are on a line of their own, and the site's baseline beside the reference."""
    text = " ".join(shown(with_site(rich(), fraction=0.97)).split())
    assert "101% of the reference, 97% of this site's median" in text
    assert "1,755 MHz, 690 W, 64 °C, power cap; 262 at first, 240 sustained" in text
    assert "MHz" not in shown(SMALL)


def test_what_differs() -> None:
    """The comparison names another GPU and another driver; with nothing slower, only what changed."""

    def text(old: dict[str, Any], new: dict[str, Any]) -> str:
        console = Console(width=200, record=True, file=io.StringIO())
        compared = compare([StoredReport(new, "new")], [StoredReport(old, "old")])
        console.print(render_comparison(compared, "26.10"))
        return console.export_text()

    old, new = rich(), rich()
    new["image"]["digest"] = "sha256:" + "2" * 64
    assert "what differs" not in text(old, new)
    for device in new["facts"]["devices"]:
        device |= {"uuid": f"GPU-{device['rank']}", "driver": "590.1"}
    found = text(old, new)
    assert "what differs" in found and "GPU others of the same model; driver 580.82.07 → 590.1" in found
    assert "image" not in found and "power limit" not in found
    assert "nothing slower" in found
    for device in new["facts"]["devices"]:
        device["name"] = "another model"
    assert "nothing could be evaluated" in text(old, new)


def test_nothing_evaluated() -> None:
    """On a busy machine the comparison does not say that nothing is slower."""
    busy = cpu({"matmul.fp32": 0.3}, probes=(("torch.import", "pass"), ("machine.steady", "warn")))
    for new, expected in ((busy, "nothing could be evaluated"), (cpu(seed=2), "nothing slower")):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(
            render_comparison(compare([StoredReport(new, "new")], [StoredReport(cpu(), "old")]), "x")
        )
        assert expected in console.export_text()


def test_format_entry() -> None:
    """A value without spread, repeats and size is shown alone."""
    assert format_entry({"median_s": 1.5}) == "1.5 s"
    assert format_entry({"median_s": None, "repeats": 3}) == "" and format_entry({}) == ""
