"""Markdown for pull requests and release notes: changes of locks.

Names and versions come from locks that others may have written, so each is a code span: it can
neither mention a person nor become a link or HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from builder.text import one_line

if TYPE_CHECKING:
    from builder.lock.changes import LockChanges
    from builder.model import LockedBase

#: GitHub refuses the text of a pull request above 65,536 characters.
MAX_TEXT = 60_000


def code(text: object) -> str:
    """Return text as a code span that is safe in a table."""
    plain = one_line(str(text)).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [_row(head), "|" + "---|" * len(head)]
    return [*lines, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def lock_changes(sections: Sequence[tuple[str, LockChanges]]) -> str:
    """Return the text of a pull request that updates locks.

    Args:
        sections: the name of each target (or file), and what changed.
    """
    text = ""
    for name, changes in sections:
        section = _section(name, changes, with_table=True)
        if len(text) + len(section) > MAX_TEXT:
            section = _section(name, changes, with_table=False)
        text += section
    return text.lstrip("\n") or "No lock changed.\n"


def _section(name: str, changes: LockChanges, *, with_table: bool) -> str:
    lines = ["", f"## {code(name)}", "", summary(changes)]
    if changes.base_moved:
        lines += ["", f"Base image: {_base(changes.old_base)} → {_base(changes.new_base)}"]
    if changes.packages and with_table:
        rows = [
            (code(c.name), c.manager, code(c.old or "") or "-", code(c.new or "") or "-")
            for c in changes.packages
        ]
        lines += ["", *table(("package", "from", "before", "after"), rows)]
    elif changes.packages:
        lines += ["", "The table is too long for this text: see the lock file."]
    return "\n".join(lines) + "\n"


def summary(changes: LockChanges) -> str:
    """Return the changes in one sentence."""
    if not changes:
        return "Nothing changed."
    counts = [f"{changes.count(kind)} {kind}" for kind in ("changed", "added", "removed")]
    moved = "; the base image moved" if changes.base_moved else ""
    return f"Packages: {', '.join(counts)}{moved}."


def _base(base: LockedBase | None) -> str:
    return f"{code(base.reference)} {code(base.digest[:19])}" if base else "none"
