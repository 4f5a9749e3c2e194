"""The result of ``builder smoke --ab`` as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from builder.smoke.ab import Ab, Figure
from builder.smoke.abrun import Side

_COLORS = {"slower": "red", "faster": "green", "same": "default", "shown": "dim"}
_TITLES = {"slower": "[red]slower[/]", "same": "[green]not slower[/]", "unsteady": "[yellow]no verdict[/]"}


def render_ab(result: Ab, sides: Mapping[str, Side]) -> Table:
    """Each figure with both images, the change of its speed and the limit. The title is the verdict.

    Args:
        result: of all rounds.
        sides: the images, ``old`` and ``new``.
    """
    names = {side: escape(f"{image.name} ({image.digest[:19]})") for side, image in sides.items()}
    table = Table(
        "",
        "name",
        "old",
        "new",
        "speed",
        "limit",
        box=None,
        title=f"{names['new']} against {names['old']}: {_TITLES[result.verdict]}; {result.rounds} rounds",
        title_justify="left",
        caption="\n".join(escape(note) for note in result.notes),
        caption_justify="left",
    )
    for figure in result.figures:
        color = _COLORS[figure.outcome]
        limit = "" if figure.outcome == "shown" else f"{100 * figure.limit:.1f} %"
        table.add_row(
            f"[{color}]{figure.outcome}[/]", _name(figure), *figure.values, f"{_change(figure):+.1f} %", limit
        )
    return table


def _change(figure: Figure) -> float:
    """The change of a figure in percent; positive: better."""
    return 100 * (figure.ratio - 1)


def _name(figure: Figure) -> str:
    return escape(f"{figure.id} ({figure.device})" if figure.device else figure.id)
