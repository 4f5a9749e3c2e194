"""From a recipe and its environment file to a lock: the conda packages first, the pip packages on
top.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.core.errors import ConfigError, UsageError
from builder.core.model import Lock, LockedBase, LockedPackage, LockRecord
from builder.core.progress import working
from builder.core.redact import redact

from .basepython import has_base_python, take_base_python
from .condaspec import parsed_spec
from .config.merge import near_hint
from .config.recipe import Recipe
from .config.yamlfile import place_of
from .inputs import CONDA_INPUTS, Inputs, channels, content_hash, cutoff, recorded_inputs
from .record import TIME
from .request import LockRequest, SolveRequest, WheelBuilder
from .sourcerecords import locked_url
from .spec import Environment, SourceSpec
from .urls import checked_urls


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The dates of a solve: packages published later are ignored; None takes all."""

    conda: datetime | None
    pip: datetime | None

    @property
    def text(self) -> str:
        """The date of the conda packages as the lock records it."""
        return self.conda.strftime(TIME) if self.conda else ""

    @classmethod
    def of(cls, inputs: Inputs, exclude_newer: str | None) -> Cutoffs:
        """Return the dates of the recipe, else of the environment file, or the one for both.

        Raises:
            ConfigError: a text is not a date.
        """
        override = cutoff(exclude_newer, "--exclude-newer")
        if override:
            return cls(override, override)
        recipe, own = inputs.recipe, inputs.environment
        of_file = cutoff(own.exclude_newer, str(own.path))
        conda = cutoff(recipe.conda.exclude_newer, f"{recipe.source}: conda")
        pip = cutoff(recipe.pip.exclude_newer, f"{recipe.source}: pip")
        return cls(conda or of_file, pip or of_file)


def lock_target(request: LockRequest) -> Lock:
    """Solve conda and then pip packages, and return the lock. Writes nothing.

    Raises:
        ConfigError: a spec or a date is wrong.
        UsageError: ``update`` contains a name that the previous lock does not have.
        SolveError: no set of packages satisfies the environment; the message contains the solver's
            reason.
        FetchError: a channel or index does not answer, and the recipe names no fallback.
        WheelError: a wheel cannot be built from its source.
    """
    recipe, previous = request.inputs.recipe, request.previous
    cutoffs = Cutoffs.of(request.inputs, request.options.exclude_newer)
    old = previous.for_platform(recipe.platform) if previous else ()
    old_conda = [package for package in old if package.manager == "conda"]
    old_pip = [package for package in old if package.manager == "pip"]
    update_conda, update_pip = _split_update(recipe, request.options.update, old_conda, old_pip)
    to_solve = request_for_solver(request, request.inputs.environment)
    record = LockRecord(recorded_inputs(request.inputs), cutoffs.text)
    if previous and not update_conda and _is_solved(previous, record, request.base):
        conda, found_in = old_conda, previous.channels
        request.reporter.note(f"{recipe.name}: {len(conda)} conda packages are unchanged")
    else:
        conda_request = replace(
            to_solve, newest=cutoffs.conda, previous=old_conda, update=update_conda
        )
        conda, found_in = solve_conda_packages(conda_request)
    pip_request = replace(to_solve, newest=cutoffs.pip, previous=old_pip, update=update_pip)
    pip = solve_pip_packages(
        with_pinned_repositories(pip_request, previous), conda, request.wheel_builder
    )
    return finish_lock(request, [*conda, *pip], found_in, recipe.environment_path, record)


def request_for_solver(request: LockRequest, environment: Environment) -> SolveRequest:
    """Return the request to solve an environment of the target, without dates and earlier lock."""
    recipe, settings, reporter = request.inputs.recipe, request.settings, request.reporter
    return SolveRequest(recipe, environment, settings, reporter=reporter, base=request.base)


def finish_lock(
    request: LockRequest,
    packages: Iterable[LockedPackage],
    found_in: Iterable[str],
    source: Path,
    record: LockRecord,
) -> Lock:
    """Return the lock of solved or imported packages, in the order of all locks.

    Args:
        request: the target and its base.
        packages: of the lock.
        found_in: the conda channels.
        source: the file that names the packages.
        record: with the inputs.

    Raises:
        SolveError: see :func:`builder.lock.urls.checked_urls`.
    """
    recipe = request.inputs.recipe
    made = Lock(
        packages=tuple(sorted(packages, key=lambda p: (p.manager, p.name))),
        platforms=(recipe.platform,),
        channels=tuple(redact(channel) for channel in found_in),
        sources=(os.path.relpath(source, recipe.lock_path.parent),),
        content_hash={recipe.platform: content_hash(record.inputs)},
        record=record,
        base=request.base,
    )
    return checked_urls(made, request.settings, request.inputs.url_variables.sources)


def with_pinned_repositories(request: SolveRequest, previous: Lock | None) -> SolveRequest:
    """Return the request with repositories at earlier commits, except for packages to update."""
    asked = json.loads(previous.record.inputs.get("sources-asked", "[]")) if previous else []
    stay = (package.source for package in request.previous if package.name not in request.update)
    locked = {(s.url, s.subdirectory): s.commit for s in stay if s is not None and s.kind == "git"}

    def pinned(spec: SourceSpec) -> SourceSpec:
        commit = locked.get((locked_url(spec.url), spec.subdirectory), "")
        is_same = spec.kind == "git" and spec.shown in asked
        return replace(spec, revision=commit) if is_same and commit else spec

    sources = tuple(map(pinned, request.environment.sources))
    return replace(request, environment=replace(request.environment, sources=sources))


def check_environment(inputs: Inputs, exclude_newer: str | None = None) -> None:
    """Check channels, conda specs and dates of a target, without network and solver.

    Raises:
        ConfigError: the environment file does not exist or names no channels, or a spec or a date
            is wrong.
    """
    recipe, environment = inputs.recipe, inputs.environment
    path = environment.path
    Cutoffs.of(inputs, exclude_newer)
    if recipe.lock and not path.exists():
        return
    if not path.exists():
        where = place_of(recipe.source, "environment")
        hint = "correct the path, or restore the file"
        raise ConfigError(f"{where}: {path} does not exist", hint)
    if not recipe.lock and not recipe.uses_base_python and not channels(recipe, environment):
        hint = "add the line channels: [conda-forge]"
        raise ConfigError(f"{environment.path}: names no channels", hint)
    for spec in environment.conda:
        parsed_spec(spec)


def _is_solved(previous: Lock, now: LockRecord, base: LockedBase | None) -> bool:
    """Return whether an earlier lock has the conda packages for the same sources and date."""
    before = previous.record
    if before.solved_before != now.solved_before or not has_base_python(previous, base):
        return False
    return all(now.inputs.get(name) == before.inputs.get(name) for name in CONDA_INPUTS)


def solve_conda_packages(request: SolveRequest) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """Return the conda packages of an environment and their channels, with a note."""
    if request.base is not None and request.base.python is not None:
        return [take_base_python(request, request.base.python)], ()
    from .conda import solve_conda

    with working(request.reporter, "solving conda packages"):
        packages, found_in = solve_conda(request)
    request.reporter.note(f"{request.recipe.name}: {len(packages)} conda packages solved")
    return packages, found_in


def solve_pip_packages(
    request: SolveRequest, conda: Sequence[LockedPackage], builder: WheelBuilder | None = None
) -> list[LockedPackage]:
    """Return the pip packages if the environment asks for any, with a note."""
    if not request.environment.pip and not request.environment.sources:
        return []
    from .pip import refuse_skipped, solve_pip

    with working(request.reporter, "solving pip packages"):
        packages = solve_pip(request, conda, builder=builder)
    refuse_skipped(request, packages)
    request.reporter.note(f"{request.recipe.name}: {len(packages)} pip packages solved")
    own = [p.name for p in packages if p.source and p.source.kind == "local"]
    if own and len(own) == len(packages) and not request.environment.lists_packages:
        request.reporter.warn(
            f"{', '.join(own)} names no dependencies: the image has its own code only. If it imports other "
            "packages, list them in requirements.txt, and run: "
            f"rm {request.recipe.source} && builder init --from requirements.txt"
        )
    return packages


def _split_update(
    recipe: Recipe, names: Sequence[str], *locked: Sequence[LockedPackage]
) -> list[frozenset[str]]:
    """Return the packages to update of each manager, in the lock's spelling.

    Args:
        recipe: the target.
        names: the packages that the user names.
        locked: the packages of each manager.
    """
    keys = {canonicalize_name(name): name for name in names}
    known = [{canonicalize_name(p.name): p.name for p in packages} for packages in locked]
    for key, name in keys.items():
        if key not in chain(*known):
            hint = near_hint(key, list(chain(*known))) or "the lock file lists the names"
            if name in recipe.base_packages:
                hint = f"it is an OS package of the base: builder lock {recipe.name} --update-base"
            raise UsageError(f"--update {name}: the lock has no such package", hint)
    return [frozenset(spelled[key] for key in keys if key in spelled) for spelled in known]
