"""Markdown for pull requests and release notes: changes of locks, plans, differences of images.

Names and versions come from locks that others may have written, so each is a code span: it can neither
mention a person nor become a link or HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builder.text import human_bytes, one_line

if TYPE_CHECKING:
    from builder.config.recipe import Recipe
    from builder.lock.changes import LockChanges
    from builder.model import Lock, LockedBase, LockedPackage

#: GitHub refuses the text of a pull request above 65,536 characters.
MAX_TEXT = 60_000


def code(text: object) -> str:
    """Text as a code span that is safe in a table."""
    plain = one_line(str(text)).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [_row(head), "|" + "---|" * len(head)]
    return [*lines, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# changes of locks -------------------------------------------------------------------------------------------


def lock_changes(sections: Sequence[tuple[str, LockChanges]]) -> str:
    """The text of a pull request that updates locks.

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
    """What changed, in one sentence."""
    if not changes:
        return "Nothing changed."
    counts = [f"{changes.count(kind)} {kind}" for kind in ("changed", "added", "removed")]
    moved = "; the base image moved" if changes.base_moved else ""
    return f"Packages: {', '.join(counts)}{moved}."


def _base(base: LockedBase | None) -> str:
    return f"{code(base.reference)} {code(base.digest[:19])}" if base else "none"


# plans ------------------------------------------------------------------------------------------------------


def plan_page(recipe: Recipe, lock: Lock, plan: Mapping[str, Any], packages: Sequence[LockedPackage]) -> str:
    """The release notes of an image: what it is made of, and its layers.

    Args:
        recipe: the target.
        lock: the lock that it is built from.
        plan: what ``builder plan --json`` prints.
        packages: of the image.
    """
    lines = [f"## {code(recipe.name)}", ""]
    if recipe.description:
        lines += [one_line(recipe.description).replace("<", "&lt;").replace("@", "@\u200b"), ""]
    lines += [f"- base: {_base(lock.base)}", f"- lock: {code(lock.digest)}"]
    lines += [f"- {plan['packages']} packages in {len(plan['layers'])} layers", ""]
    rows = [
        (code(layer["title"]), str(len(layer["packages"])), human_bytes(layer["archive_bytes"]))
        for layer in plan["layers"]
    ]
    lines += table(("layer", "packages", "archives"), rows)
    if plan["unknown_sizes"]:
        lines += ["", f"The sizes of {plan['unknown_sizes']} archives are not known here."]
    lines += ["", "<details><summary>Packages</summary>", ""]
    named = sorted(packages, key=lambda p: (p.name, p.manager))
    lines += table(
        ("package", "version", "from"), [(code(p.name), code(p.version), p.manager) for p in named]
    )
    return "\n".join([*lines, "", "</details>", ""])


# differences of images --------------------------------------------------------------------------------------


def file_differences(a: str, b: str, lines: Sequence[str]) -> str:
    """The differing files of two images.

    Args:
        a, b: the images.
        lines: one per path, and the summary last.
    """
    head = [f"## {code(a)} and {code(b)}", "", one_line(lines[-1]) + ".", ""]
    return "\n".join([*head, *(f"- {code(line)}" for line in lines[:-1])]) + "\n"
