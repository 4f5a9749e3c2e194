"""What a lock was made from, kept in its metadata as readable texts: so a stale lock can say what changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from packaging.utils import canonicalize_name

from builder.config.recipe import Recipe
from builder.errors import ConfigError
from builder.lock.environment import Environment, read_environment
from builder.lock.names import pypi_name
from builder.model import Lock, canonical_json
from builder.redact import redact
from builder.settings import Settings

_PREFIX = "builder."
#: metadata key -> what a person calls it
_TITLES = {
    "conda": "conda specs",
    "pip": "pip requirements",
    "channels": "channels",
    "pip-options": "pip options",
    "virtual-packages": "virtual packages",
    "exclude-newer": "exclude_newer",
    "base-packages": "base_packages",
}
#: The inputs that the conda part depends on.
CONDA_INPUTS = ("builder.conda", "builder.channels", "builder.virtual-packages", "builder.exclude-newer")

#: What is declared to the solver when the recipe says nothing: a machine of RHEL 8's age, never the one that builds.
_DEFAULTS = {"__unix": "0", "__linux": "4.18", "__glibc": "2.28"}
_ARCHSPEC = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


def virtual_packages(recipe: Recipe) -> dict[str, str]:
    """The virtual packages of the target: the recipe's, and defaults where it is silent, as ``VERSION`` or ``VERSION=BUILD``."""
    return {**_DEFAULTS, "__archspec": f"1={_ARCHSPEC[recipe.platform]}", **recipe.virtual_packages}


def channels(recipe: Recipe, environment: Environment) -> tuple[str, ...]:
    """The channels to solve with, highest priority first: the recipe's when it names any, else the environment's."""
    named = (c for c in recipe.conda.channels if c != "nodefaults")
    return tuple(dict.fromkeys(named)) or environment.channels


def cutoff(text: str | None, where: str) -> datetime | None:
    """The moment (UTC) of an exclude-newer text: a date means its end, a time without zone is UTC.

    Raises:
        ConfigError: neither a date nor a time of ISO 8601.
    """
    if not text:
        return None
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            day = date.fromisoformat(text) + timedelta(days=1)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{where}: exclude-newer {text!r} is not a date", "write it as 2026-07-01 or 2026-07-01T12:00:00Z"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def inputs(recipe: Recipe, environment: Environment) -> dict[str, str]:
    """All that decides what is locked, as custom metadata (the base image's reference has its own key)."""
    pip = {
        "index_url": recipe.pip.index_url or environment.index_url,
        "extra_index_urls": [*environment.extra_index_urls, *recipe.pip.extra_index_urls],
        "find_links": [*environment.find_links, *recipe.pip.find_links],
        "exclude_newer": recipe.pip.exclude_newer,
    }
    values: dict[str, Any] = {
        "conda": sorted(s.text for s in environment.conda),
        "pip": sorted(s.text for s in environment.pip),
        "channels": channels(recipe, environment),
        "pip-options": {k: v for k, v in pip.items() if v},
        "virtual-packages": virtual_packages(recipe),
        "exclude-newer": recipe.conda.exclude_newer or "",
        "base-packages": sorted(recipe.base_packages),
    }
    return {
        _PREFIX + key: redact(v if isinstance(v, str) else canonical_json(v).decode())
        for key, v in values.items()
    }


def content_hash(custom: Mapping[str, str]) -> str:
    """One hash (hex) over :func:`inputs`."""
    return hashlib.sha256(canonical_json(dict(custom))).hexdigest()


def stale_reasons(recipe: Recipe, lock: Lock, settings: Settings) -> list[str]:
    """Why a lock is not that of its sources any more; empty when it is.

    A lock that builder did not make is checked for what it can be: the platform, and that every package asked for is in it.

    Raises:
        ConfigError: the environment file is wrong.
    """
    if recipe.platform not in lock.platforms:
        return [
            f"the lock is for {', '.join(lock.platforms) or 'no platform'}, the recipe for {recipe.platform}"
        ]
    if _PREFIX + "conda" not in lock.custom:
        return _missing(recipe, lock)
    reasons = []
    if lock.base and lock.base.reference != recipe.base:
        reasons.append(f"base changed from {lock.base.reference} to {recipe.base}")
    now = inputs(recipe, read_environment(recipe.environment_path, recipe.platform))
    for key, title in _TITLES.items():
        old, new = lock.custom.get(_PREFIX + key, ""), now[_PREFIX + key]
        if old != new:
            reasons.append(f"{title} changed{_difference(old, new)}")
    return reasons


def _difference(old: str, new: str) -> str:
    try:
        before, after = json.loads(old), json.loads(new)
    except ValueError:
        return f" from {old or 'none'} to {new or 'none'}"
    if isinstance(before, dict) and isinstance(after, dict):
        before, after = (
            [f"{k} {' '.join(v) if isinstance(v, list) else v}" for k, v in x.items()]
            for x in (before, after)
        )
    if not isinstance(before, list) or not isinstance(after, list):
        return ""
    gone, come = [str(x) for x in before if x not in after], [str(x) for x in after if x not in before]
    if not gone and not come:
        return f": now in the order {', '.join(map(str, after))}"
    return (
        ":"
        + (f" now with {', '.join(come)}" if come else "")
        + ("," if come and gone else "")
        + (f" without {', '.join(gone)}" if gone else "")
    )


def _missing(recipe: Recipe, lock: Lock) -> list[str]:
    if not recipe.environment_path.exists():
        return []  # a lock made elsewhere needs no environment file
    environment = read_environment(recipe.environment_path, recipe.platform)
    have = {p.name.lower() for p in lock.packages if p.platform == recipe.platform}
    have |= {canonicalize_name(n) for n in have} | {pypi_name(n) for n in have}
    return [
        f"{s.where}: {s.name} is not in the lock"
        for s in (*environment.conda, *environment.pip)
        if s.name not in have
    ]
