"""The tables of a smoke report and of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.cli.terminal import fitted
from builder.deliver.smoke.changes import compare
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.schema import could_not_run
from builder.deliver.smoke.table import render, render_changes
from tests.support.image_kit import recipe
from tests.support.reports import SMALL, measured, months, report, rich

RECIPE = recipe(gpu={"vendor": "nvidia", "architectures": ["sm_80", "sm_90"]})


def printed(table: Any) -> str:
    return "\n".join(fitted(table, 1000))


def shown(report: Mapping[str, Any], **options: Any) -> str:
    value = SmokeReport(report["verdict"], dict(report), "docker", "sha256:" + "0" * 64, 3.5)
    return printed(render(value, **options))


def test_render() -> None:
    """The table has the verdict, the values and the advice. Text from the report is not markup."""
    text = shown(SMALL)
    assert "pass in 3.5 s (docker)" in text and "83.81 GFLOP/s +- 6.6 (5 times, size 2048)" in text
    assert "not [here]" not in text and "torch.build" not in text
    text = shown(SMALL, everything=True)
    assert "not [here]" in text and "torch.build" in text
    text = " ".join(shown({**SMALL, "verdict": "warn"}).split())
    assert "A warning does not stop publishing" in text
    text = shown(could_not_run(RECIPE, "report", "said [bold]nothing[/bold]", "look"))
    assert "error" in text and "said [bold]nothing[/bold]" in text and "-> look" in text


def test_six_figures() -> None:
    """Of many figures six are shown, and every problem."""
    names = ["bf16", "fp32", "fp16", "tf32"]
    made = report(
        [measured(f"matmul.{name}", 100e3) for name in names]
        + [measured(f"memory.{name}", 1e3) for name in ("copy", "triad")]
        + [measured(name, 100e3) for name in ("attention", "conv.training", "transfer.h2d_pinned")],
        probes=(("torch.build", "pass"), ("gpu.clocks", "warn")),
    )
    text = shown(made)
    assert text.count("pass ") == 6 + 1 and "gpu.clocks" in text and "fp16" not in text
    assert shown(made, everything=True).count("pass ") == 10 + 1


def test_state_of_gpus() -> None:
    """Clock, power and heat are on a line of their own."""
    text = " ".join(shown(rich()).split())
    assert "101% of the reference" in text
    assert "1,755 MHz, 690 W, 64 °C, throttled by power cap" in text
    assert "MHz" not in shown(SMALL)


def test_changes() -> None:
    """What changed is shown with packages and the advice to run both in turn; else one line."""
    old, same, slower = months({}, {}, {"matmul.bf16": 0.8})
    text = printed(render_changes(compare([slower], [old]), "26.08"))
    assert "1 changed beyond what is usual" in text and "slower  matmul.bf16" in text
    assert "nvidia-cublas-cu12 (pip) 12.8.4.1 -> 12.9.0.2" in text and "--ab OLD NEW" in text
    text = " ".join(printed(render_changes(compare([same], [old]), "26.08")).split())
    assert "nothing changed beyond what is usual" in text and "--ab" not in text
