"""Which tags and manifests of a repository a rule keeps, and which it deletes. A function of what is there.

A *dated* tag is one that the pattern of dated tags makes (``%y.%m``: ``26.11``). Only dated tags expire. A
manifest goes with its last tag. What a tag that stays names, and what is in an index that it names, stays::

    26.11, latest -> index 1 (amd64: A, arm64: B)     keep
    25.01         -> index 2 (amd64: C, arm64: B)     index 2 and C are deleted, B stays
    25.02         -> A                                stays: latest names it, too
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.errors import UsageError
from builder.oci.reference import is_tag

_MONTHS = re.compile(r"(\d{1,4})[ -]?months?")
_EXAMPLE = "write --keep '12 months', or --keep '12 months,25.03' to keep a tag that is older"


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays."""

    months: int
    """Dated tags of this month, and of the ``months - 1`` before it."""
    tags: frozenset[str] = frozenset()
    """Tags that stay in any case."""
    pattern: str = "%y.%m"
    """The pattern of dated tags (strftime)."""

    @classmethod
    def parse(cls, text: str, pattern: str = "%y.%m") -> Keep:
        """Reads ``12 months,latest``.

        Raises:
            UsageError: it does not say how many months, or the pattern has no month.
        """
        if "%m" not in pattern or not ("%y" in pattern or "%Y" in pattern):
            raise UsageError(
                f"--pattern {pattern!r} has no year and month", "write the recipe's pattern: --pattern %y.%m"
            )
        months: list[int] = []
        tags: set[str] = set()
        for item in filter(None, map(str.strip, text.split(","))):
            if found := _MONTHS.fullmatch(item):
                months.append(int(found[1]))
            elif is_tag(item):
                tags.add(item)
            else:
                raise UsageError(f"--keep {item!r} is neither a number of months nor a tag", _EXAMPLE)
        if len(months) != 1 or months[0] < 1:
            raise UsageError(f"--keep {text!r} does not say how many months to keep", _EXAMPLE)
        return cls(months[0], frozenset(tags), pattern)

    def expires(self, tag: str, today: datetime.date) -> bool:
        """Whether a tag is dated, and older than what is kept."""
        try:
            date = datetime.datetime.strptime(tag, self.pattern).date()
            is_dated = date.strftime(self.pattern) == tag  # strptime reads 26.1 as 26.01
        except ValueError:
            return False
        age = (today.year - date.year) * 12 + today.month - date.month
        return is_dated and tag not in self.tags and age >= self.months


@dataclass(frozen=True, slots=True)
class Retention:
    """What is deleted from a repository."""

    tags: Mapping[str, str]
    """Tags that are deleted, with what they name: a digest."""
    shared: Mapping[str, str]
    """Expired tags that stay, each with a tag that stays and names the same image."""
    manifests: tuple[str, ...]
    """The digests of manifests that are deleted, each index before what is in it."""
    needed: frozenset[str]
    """The digests of manifests that stay: what tags name that stay, and what is in it."""


def plan_retention(
    named: Mapping[str, str], parts: Mapping[str, tuple[str, ...]], keep: Keep, today: datetime.date
) -> Retention:
    """What a rule deletes.

    Args:
        named: all tags of the repository, and the digest that each names.
        parts: for each index, the digests of all manifests in it, also in indexes that it contains.
        keep: the rule.
        today: the current day.
    """
    staying = {tag: digest for tag, digest in named.items() if not keep.expires(tag, today)}
    needed: dict[str, str] = {}
    for tag, digest in staying.items():
        for each in (digest, *parts.get(digest, ())):
            needed.setdefault(each, tag)
    expired = {tag: digest for tag, digest in named.items() if tag not in staying}
    deleted = {tag: digest for tag, digest in expired.items() if digest not in needed}
    found: dict[str, None] = {}
    for digest in deleted.values():
        found.setdefault(digest)
    for digest in tuple(found):
        found |= {part: None for part in parts.get(digest, ()) if part not in needed}
    shared = {tag: needed[digest] for tag, digest in expired.items() if digest in needed}
    return Retention(deleted, shared, tuple(found), frozenset(needed))
