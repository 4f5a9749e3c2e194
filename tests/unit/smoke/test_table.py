"""The table of a smoke report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from builder.smoke.run import SmokeReport
from builder.smoke.schema import could_not_run
from builder.smoke.table import format_entry, render
from tests.support.image_kit import recipe
from tests.support.reports import SMALL

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
        and "83.81 gflop/s ± 6.6 (5 times, size 2048)" in text
        and "not [here]" not in text
    )
    assert "not [here]" in shown(SMALL, skipped=True)
    text = " ".join(shown({**SMALL, "verdict": "warn"}).split())
    assert "A warning does not stop publishing" in text
    text = shown(could_not_run(RECIPE, "report", "said [bold]nothing[/bold]", "look"))
    assert "error" in text and "said [bold]nothing[/bold]" in text and "-> look" in text


def test_format_entry() -> None:
    """A value without spread, repeats and size is shown alone."""
    assert format_entry({"median_s": 1.5}) == "1.5 s"
    assert format_entry({"median_s": None, "repeats": 3}) == "" and format_entry({}) == ""
