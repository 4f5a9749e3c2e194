"""How current a site file is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from builder.config.site import Site

#: Days after which a site file should be compared with its sources again.
MAX_AGE = 180


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
    """Returns how current a site file is.

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
    elif age > max_age:
        problems.append(f"was checked {age} days ago")
    if not site.sources:
        problems.append("has no 'sources:'")
    return Currency(site.checked or "", age, tuple(problems))
