"""Environment files to lock files: conda packages by py-rattler, pip packages by uv, the base image by digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from builder.errors import LockError
from builder.lock.condalock import read_lock, write_lock
from builder.lock.environment import Environment, read_environment
from builder.model import Lock, LockedBase, canonical_json
from builder.progress import QUIET, Reporter
from builder.settings import Settings

if TYPE_CHECKING:
    from builder.config.recipe import Recipe

__all__ = ["Environment", "lock_target", "read_environment", "read_lock", "stale_reasons", "write_lock"]

SOURCES = "builder.sources"


def lock_target(
    recipe: Recipe,
    settings: Settings,
    *,
    base: LockedBase | None,
    previous: Lock | None = None,
    update: Sequence[str] = (),
    exclude_newer: str | None = None,
    reporter: Reporter = QUIET,
) -> Lock:
    """Solves a target's environment.

    Args:
        base: the pinned base image.
        previous: with ``update``: the lock to change as little as possible.
        update: names that may move; everything else stays unless it must follow.
        exclude_newer: a date instead of the recipe's.

    Raises:
        ConfigError, SolveError, FetchError.
        LockError: a name in ``update`` that is not locked.
    """
    from builder.lock.conda import solve_conda
    from builder.lock.pip import solve_pip

    environment = read_environment(recipe.environment_path, recipe.platform)
    date = exclude_newer or recipe.conda.exclude_newer
    old = previous.for_platform(recipe.platform) if previous else ()
    if unknown := sorted(set(update) - {p.name for p in old}):
        raise LockError(f"{recipe.lock_path}: no package {', '.join(unknown)} to update", "builder lock without --update solves everything anew")
    kept = [p for p in old if p.name not in update]
    reporter.note(f"solving {recipe.environment}")
    conda, channels = solve_conda(
        recipe, environment, settings, previous=[p for p in kept if p.manager == "conda"], exclude_newer=date, reporter=reporter
    )
    pip = solve_pip(
        recipe, environment, conda, settings, previous=[p for p in kept if p.manager == "pip"], exclude_newer=date, reporter=reporter
    )
    sections = source_sections(recipe, environment)
    return Lock(
        packages=(*conda, *pip),
        platforms=(recipe.platform,),
        channels=channels,
        sources=(recipe.environment_path.name,),
        content_hash={recipe.platform: _hash(sections)},
        custom={SOURCES: json.dumps(sections, sort_keys=True)},
        base=base,
    )


def source_sections(recipe: Recipe, environment: Environment) -> dict[str, str]:
    """A short hash of each part that a lock depends on, by the name that a message uses for it."""
    options = environment.pip_options
    return {
        "channels": _hash([*(recipe.conda.channels or environment.channels)]),
        "conda dependencies": _hash([*environment.conda]),
        "pip dependencies": _hash([*environment.pip]),
        "pip options": _hash([options.index_url, options.extra_index_urls, options.find_links, options.no_index, recipe.pip.model_dump(mode="json")]),
        "virtual packages": _hash(dict(recipe.virtual_packages)),
        "exclude_newer": _hash(recipe.conda.exclude_newer),
        "base image": _hash([recipe.base, *sorted(recipe.base_packages)]),
    }


def _hash(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()[:16]


def stale_reasons(recipe: Recipe, lock: Lock, settings: Settings) -> list[str]:
    """Why a lock is not that of its recipe and environment any more; empty when it is, or when it was made elsewhere.

    Reads the environment file; asks nobody.
    """
    if recipe.platform not in lock.platforms:
        return [f"it has no packages for {recipe.platform}"]
    if SOURCES not in lock.custom:
        return []  # conda-lock's own: its content hash covers what we cannot see from here
    try:
        known = json.loads(lock.custom[SOURCES])
    except ValueError:
        known = None
    if not isinstance(known, Mapping):
        return ["its metadata is damaged"]
    now = source_sections(recipe, read_environment(recipe.environment_path, recipe.platform))
    return [f"{name} changed" for name in now if now[name] != known.get(name)]
