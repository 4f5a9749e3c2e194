"""Markdown for pull requests and release notes: changes of locks.

Names and versions come from locks that others may have written, so each is a code span: it can
neither mention a person nor become a link or HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from builder.core.text import Table, one_line
from builder.lock.changes import LockChanges

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
    packages = package_table(changes)
    if packages.rows and not with_table:
        packages.rows = []
        packages.caption = "The table is too long for this text: see the lock file."
    return "\n".join(["", f"## {code(name)}", "", *section(packages)])


def section(shown: Table) -> list[str]:
    """Return the lines of a table with its title and caption; each cell is a code span."""
    rows = [[code(cell) for cell in row] for row in shown.rows]
    lines = [shown.title, "", *table(shown.columns, rows), ""] if rows else [shown.title, ""]
    return [*lines, code(shown.caption), ""] if shown.caption else lines


def package_table(changes: LockChanges) -> Table:
    """Return the packages that differ, and the base image."""
    rows: list[Sequence[str]] = [
        (c.name, c.manager, c.old or "new", c.new or "gone") for c in changes.packages
    ]
    if changes.base_moved:
        sides = (changes.old_base, changes.new_base)
        names = (f"{base.reference} {base.digest[:19]}" if base else "none" for base in sides)
        rows.insert(0, ("base image", "", *names))
    return Table(("package", "from", "before", "after"), rows, summary(changes))


def summary(changes: LockChanges) -> str:
    """Return the changes in one sentence."""
    if not changes:
        return "No package changed."
    counts = [f"{changes.count(kind)} {kind}" for kind in ("changed", "added", "removed")]
    moved = "; the base image moved" if changes.base_moved else ""
    return f"Packages: {', '.join(counts)}{moved}."
