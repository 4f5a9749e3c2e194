"""Systems that are switched off, and how current a site file is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from builder.config.recipe import Recipe
from builder.config.site import Site
from builder.errors import UsageError

#: Days after which a site file should be compared with its sources again.
MAX_AGE = 180


def off_note(site: Site) -> str:
    """Returns a few words on a system that is switched off, for tables; empty: it is not."""
    return f"off: use {', '.join(site.successors) or 'another site'}" if site.status == "retired" else ""


def retired_note(site: Site, title: str) -> str:
    """Returns a sentence about a system that is switched off, with its successors; empty for all others."""
    if site.status != "retired":
        return ""
    since = f" on {site.retired}" if site.retired else ""
    successors = f"; its successors: {', '.join(site.successors)}" if site.successors else ""
    return f"{title} was switched off{since}{successors}"


def require_current(recipe: Recipe) -> None:
    """Checks that the target's system still takes jobs.

    Raises:
        UsageError: it is switched off.
    """
    note = retired_note(recipe.site, recipe.site_title)
    if note:
        successor = next(iter(recipe.site.successors), "NAME")
        raise UsageError(
            f"no job can be submitted: {note}",
            f"write site: {successor} in {recipe.source.name} (builder sites lists the sites)",
        )


@dataclass(frozen=True, slots=True)
class Currency:
    """How current a site file is."""

    checked: str
    """The day on which somebody compared it with its sources; empty: never."""
    age: int | None
    """Days since then."""
    problems: tuple[str, ...]
    """What is to do; empty: nothing."""


def currency(site: Site, today: date, max_age: int = MAX_AGE) -> Currency:
    """Returns how current a site file is. Of a retired system only the sources must be there.

    Args:
        site: with its own keys ``checked`` and ``sources``.
        today: the current day.
        max_age: days after which a file should be compared with its sources again.
    """
    age = (today - date.fromisoformat(site.checked)).days if site.checked else None
    problems = []
    if age is None:
        problems.append("has no 'checked:'")
    elif age < 0:
        problems.append(f"checked: {site.checked} is in the future")
    elif age > max_age and site.status == "current":
        problems.append(f"was checked {age} days ago")
    if not site.sources:
        problems.append("has no 'sources:'")
    return Currency(site.checked or "", age, tuple(problems))
