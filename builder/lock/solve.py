"""From a recipe and its environment file to a lock: conda first, then pip on top of it."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence

from packaging.utils import canonicalize_name

from builder.config.recipe import Recipe
from builder.errors import UsageError
from builder.lock.environment import read_environment
from builder.lock.inputs import CONDA_INPUTS, content_hash, cutoff, inputs
from builder.model import Lock, LockedBase
from builder.progress import QUIET, Reporter
from builder.redact import redact
from builder.settings import Settings

_NEWEST = "builder.solved-before"


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
    """Solves a target's environment; nothing is written.

    Args:
        base: the base image to pin.
        previous: a lock whose packages are kept where the sources allow.
        update: packages (conda or pip names) of ``previous`` that move to the newest version; others move only where they must.
        exclude_newer: a date or time (ISO 8601), instead of the recipe's (``conda`` and ``pip`` have each their own): what came
            later is not seen.

    Raises:
        ConfigError: a wrong environment file, spec or date.
        UsageError: a name in ``update`` that the lock does not have.
        SolveError: nothing satisfies the environment; the solver's reason is in the message.
        FetchError: a channel or index does not answer, and the recipe names no fallback.
    """
    from builder.lock.conda import solve_conda
    from builder.lock.pip import solve_pip

    environment = read_environment(recipe.environment_path, recipe.platform)
    asked = cutoff(exclude_newer, "--exclude-newer")
    newest = asked or cutoff(recipe.conda.exclude_newer, f"{recipe.source}: conda")
    newest_pip = asked or cutoff(recipe.pip.exclude_newer, f"{recipe.source}: pip")
    before = previous.for_platform(recipe.platform) if previous else ()
    old_conda = [p for p in before if p.manager == "conda"]
    old_pip = [p for p in before if p.manager == "pip"]
    move_conda, move_pip = _moving(update, [p.name for p in old_conda], [p.name for p in old_pip])
    custom = inputs(recipe, environment)
    date = newest.strftime("%Y-%m-%dT%H:%M:%SZ") if newest else ""

    started = time.monotonic()
    reporter.start("conda packages", None, "")
    try:
        same = (
            previous is not None
            and date == previous.custom.get(_NEWEST, "")
            and all(custom[k] == previous.custom.get(k) for k in CONDA_INPUTS)
        )
        if previous is not None and same and not move_conda:
            conda, channels = old_conda, previous.channels
        else:
            conda, channels = solve_conda(
                recipe,
                environment,
                settings,
                newest=newest,
                keep=old_conda,
                update=move_conda,
                reporter=reporter,
            )
    finally:
        reporter.finish("conda packages")
    reporter.note(f"{len(conda)} conda packages solved in {time.monotonic() - started:.1f} s")
    pip = []
    if environment.pip:
        started = time.monotonic()
        reporter.start("pip packages", None, "")
        try:
            pip = solve_pip(
                recipe,
                environment,
                conda,
                settings,
                newest=newest_pip,
                keep=old_pip,
                update=move_pip,
                reporter=reporter,
            )
        finally:
            reporter.finish("pip packages")
        reporter.note(f"{len(pip)} pip packages resolved in {time.monotonic() - started:.1f} s")
    return Lock(
        packages=tuple(sorted([*conda, *pip], key=lambda p: (p.manager, p.name))),
        platforms=(recipe.platform,),
        channels=tuple(redact(c) for c in channels),
        sources=(os.path.relpath(recipe.environment_path, recipe.lock_path.parent),),
        content_hash={recipe.platform: content_hash(custom)},
        custom={**custom, **({_NEWEST: date} if date else {})},
        base=base,
    )


def _moving(
    names: Sequence[str], conda: Sequence[str], pip: Sequence[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The names to update as the lock writes them, by manager."""
    by_conda, by_pip = {canonicalize_name(n): n for n in conda}, {canonicalize_name(n): n for n in pip}
    move_conda, move_pip = set(), set()
    for name in names:
        key = canonicalize_name(name)
        if key not in by_conda and key not in by_pip:
            near = difflib.get_close_matches(key, [*by_conda, *by_pip], n=3)
            raise UsageError(
                f"--update {name}: the lock has no such package",
                f"did you mean {' or '.join(near)}?" if near else "see the lock file for names",
            )
        if key in by_conda:
            move_conda.add(by_conda[key])
        if key in by_pip:
            move_pip.add(by_pip[key])
    return frozenset(move_conda), frozenset(move_pip)
