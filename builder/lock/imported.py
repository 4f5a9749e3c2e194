"""From the lock of another tool to builder's own lock: the same packages, and what that lock lacks.

A lock of pip packages has no Python, so it is solved from the conda channels; no lock pins a base
image::

    uv.lock: flask 3.1.0, werkzeug 3.1.3   ->   flask 3.1.0, werkzeug 3.1.3     as in uv.lock
    requires-python: ">=3.11"                   python 3.11.9, openssl, ...     solved: python 3.11.*|3.12.*
                                                builder.base-digest             the recipe's base

The versions of Python to choose from are those for which every package of the lock has a wheel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from builder.core.errors import LockError, UsageError
from builder.core.markers import PATCHES
from builder.core.model import Lock, LockedPackage, LockRecord
from builder.core.progress import working
from builder.core.redact import redact
from builder.formats.net.mirrors import public_url
from builder.formats.trees.inside import wider_project

from .basepython import refuse_conda_packages
from .formats import ForeignLock, LockTarget, foreign_python, read_foreign
from .groups import left_out_line
from .inputs import Inputs, channels, missing, recorded_inputs
from .manifests import is_manifest
from .manifests.reader import CHANNEL, conda_version, pinned_python
from .othertools import relock_command
from .pip import solve_pip
from .request import BuiltWheel, LockRequest, SolveRequest, WheelBuilder
from .solve import Cutoffs, finish_lock, request_for_solver, solve_conda_packages
from .sourcerecords import GIT_HASH, GIT_URLS
from .sourcesolve import fetched_wheel, missing_requirements, wheel_package
from .spec import SourceSpec, Spec
from .uv import NoWheels

_CONTROL = re.compile(r"[\x00-\x1f]")
#: In a marker that newer or older versions of Python change.
_OF_PYTHON = re.compile(r"\bpython_(full_)?version\b")
#: Minor versions of Python 3 that a lock may be for.
_MINORS = range(8, 16)


def import_lock(request: LockRequest) -> Lock:
    """Return the lock of a target, made from the lock of another tool. Writes nothing.

    All versions are those of the file: ``previous`` is not used, and ``exclude_newer`` concerns
    only what the file lacks.

    Raises:
        LockError: the file is damaged, has nothing for this target, or lacks what the environment
            asks for.
        UsageError: ``update`` names a package.
        SolveError: no Python satisfies the lock; the message contains the solver's reason.
        FetchError: a channel or index does not answer, and the recipe names no fallback.
        WheelError: a wheel cannot be built from its source.
    """
    inputs, recipe, options = request.inputs, request.inputs.recipe, request.options
    path = recipe.imported_lock
    assert path is not None
    if options.update:
        raise UsageError(
            f"--update {options.update[0]}: the versions of target {recipe.name} are those of {path.name}",
            f"update it with the tool that wrote {path.name}, then: builder lock {recipe.name}",
        )
    environment = inputs.environment
    named = channels(recipe, environment) or (CHANNEL,)  # those from which Python is solved
    to_solve = request_for_solver(request, replace(environment, channels=named))
    cutoffs = Cutoffs.of(inputs, options.exclude_newer)
    task = _Task(to_solve, inputs, cutoffs, path, request.wheel_builder)
    asked = recorded_inputs(inputs)  # a lock that changes while it is read is stale then
    foreign, added, found_in, pinned = _fitting(task)
    settings = request.settings
    packages = [replace(p, url=public_url(settings, p.url)) for p in foreign.packages]
    packages += pinned
    packages += _build_sources(task, foreign, [*added, *packages])
    line = left_out_line(recipe.groups, foreign.omitted)
    record = LockRecord(asked, task.cutoffs.text, imported_tool=foreign.tool, left_out=line)
    if not any(package.dependencies for package in foreign.packages):  # an explicit list
        names = [package.name for package in foreign.packages if package.manager == "conda"]
        record = replace(record, link_order=" ".join(names))
    lock = finish_lock(request, [*packages, *added], found_in, path, record)
    if lacking := missing(inputs, lock):
        raise LockError("\n".join(lacking), f"lock it with the tool that wrote {path.name}")
    for note in _notes(path, foreign, lock, added):
        request.reporter.note(f"{recipe.name}: {note}")
    return lock


@dataclass(frozen=True)
class _Task:
    """One lock to import."""

    request: SolveRequest
    """Of the target, with the channels from which Python is solved."""
    inputs: Inputs
    cutoffs: Cutoffs
    path: Path
    """The lock of the other tool."""
    builder: WheelBuilder | None
    """None: a package that is locked as source is an error."""

    @property
    def names_python(self) -> bool:
        """Whether the project or its base decides the Python."""
        is_named = any(spec.name == "python" for spec in self.request.environment.conda)
        has_one = self.request.base is not None and self.request.base.python is not None
        return is_named or has_one or bool(pinned_python(self.path.parent))

    def read(self, python: str | None) -> ForeignLock:
        """Return the packages of the lock for a version of Python, of the recipe's groups."""
        return read_foreign(self.path, LockTarget(self.request.recipe, python or ""))


# Python -------------------------------------------------------------------------------------------


def _fitting(
    task: _Task,
) -> tuple[ForeignLock, list[LockedPackage], tuple[str, ...], list[LockedPackage]]:
    """Return the lock, the conda packages to add, their channels, and the wheels of its pins.

    A lock of pip packages gets a Python first, as its markers and wheels need one. Where a pin has
    wheels for other versions alone, which uv names (0.13), the newest of these is taken.
    """
    needed = foreign_python(task.path)
    if needed is None:
        foreign = task.read(None)
        refuse_conda_packages(task.request.recipe, foreign.packages, str(task.path))
        named = tuple(public_url(task.request.settings, url) for url in foreign.channels)
        return foreign, [], named, _find_pinned(task, foreign, [])
    versions = _versions(task, needed)
    while True:
        added, found_in = _solve_python(task, versions, needed)
        python = next(package.python_version for package in added if package.name == "python")
        foreign = task.read(python)
        if not foreign.is_fitting:
            raise _without_python(task, needed, [foreign], None)
        try:
            return foreign, added, found_in, _find_pinned(task, foreign, added)
        except NoWheels as e:
            if task.names_python:
                raise
            older = versions[: versions.index(python.rpartition(".")[0])]
            versions = [v for v in older if f"`cp{v.replace('.', '')}`" in e.message]
            if not versions:
                raise


def _solve_python(
    task: _Task, versions: Sequence[str], needed: str
) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """Return the conda packages of the environment file, and one of these versions of Python.

    Raises:
        SolveError: the channels have none of them.
    """
    any_of = "|".join(f"{version}.*" for version in versions)
    texts = [f"python {conda_version(str(_allowed(needed)))}".strip(), f"python {any_of}"]
    specs = [Spec(text, "python", str(task.path)) for text in texts]
    environment = task.request.environment
    conda = [s for s in environment.conda if s.text != "pip" or not is_manifest(environment.path)]
    pinned = pinned_python(task.path.parent)
    if pinned and all(spec.text != pinned.text for spec in conda):
        conda.append(pinned)
    environment = replace(environment, path=task.path, conda=(*conda, *specs), pip=())
    request = replace(task.request, newest=task.cutoffs.conda, environment=environment)
    return solve_conda_packages(request)


def _allowed(needed: str) -> SpecifierSet:
    try:
        return SpecifierSet(needed)
    except InvalidSpecifier:
        return SpecifierSet()


def _versions(task: _Task, needed: str) -> list[str]:
    """Return the versions of Python for which the lock has all its packages, oldest first.

    Each is tried with its newest release that the lock allows (``>=3.11.2``: a later one of 3.11),
    which is the one that channels have; where this keeps no package, with the oldest.

    Raises:
        LockError: there is none.
    """
    allowed, found, problem = _allowed(needed), dict[str, ForeignLock](), None
    for version in map("3.{}".format, _MINORS):
        releases = [*allowed.filter(f"{version}.{patch}" for patch in PATCHES)]
        for release in dict.fromkeys([*releases[-1:], *releases[:1]]):
            try:
                found[version] = task.read(release)
            except LockError as e:
                problem = e
                continue
            if found[version].found:
                break
    fitting = {version: lock for version, lock in found.items() if lock.is_fitting}
    if not fitting:
        raise _without_python(task, needed, list(found.values()), problem)
    return list(fitting) if needed or task.names_python else _complete(fitting)


def _without_python(
    task: _Task, needed: str, found: Sequence[ForeignLock], problem: LockError | None
) -> LockError:
    """Return the error for a lock that has no package for any version of Python."""
    if found:
        spec, platform = found[0].skipped[0], task.request.recipe.platform
        return LockError(
            f"{spec.where}: {spec.text}: this and all other markers are false for {platform}",
            f"lock again for {platform}, or choose other groups in the recipe",
        )
    return problem or LockError(
        f"{task.path}: requires Python {needed}, and builder knows 3.{_MINORS[0]} to 3.{_MINORS[-1]}",
        "lock again for one of these versions",
    )


def _complete(fitting: Mapping[str, ForeignLock]) -> list[str]:
    """Return the versions for which no marker skips a requirement.

    If there is none, those of the oldest version (``tomli ; python_version < "3.11"``) and of the
    newest one do not count: what they add is part of other Pythons.

    Raises:
        LockError: two requirements are for different Pythons.
    """
    oldest, *_, newest = [*fitting, *fitting]
    kept = {version: {p.name for p in lock.found} for version, lock in fitting.items()}
    every = set().union(*kept.values())
    certain = every - kept[oldest] - kept[newest]
    for wanted in (every, certain):
        if complete := [version for version in fitting if kept[version] >= wanted]:
            return complete
    spec = next(spec for spec in fitting[newest].skipped if spec.name in certain)
    raise LockError(
        f"{spec.where}: {spec.text}: no version of Python keeps this requirement and all others",
        "name the Python whose requirements are meant in .python-version",
    )


# packages -----------------------------------------------------------------------------------------


def _find_pinned(
    task: _Task, foreign: ForeignLock, added: Sequence[LockedPackage]
) -> list[LockedPackage]:
    """Return the wheels of a requirements file, from the indexes, with a hash of the file.

    Raises:
        NoWheels: a package has no wheel for this Python, and none was built.
        LockError: the wheel that fits the target has another hash.
        SolveError: the indexes do not have a version.
    """
    _check_urls(task, foreign)
    if not foreign.pinned:
        return []
    own, options = task.request.environment, foreign.options
    environment = replace(
        own,
        path=task.path,
        pip=tuple(foreign.pinned),
        index_url=options.index_url or own.index_url,
        extra_index_urls=(*options.extra_index_urls, *own.extra_index_urls),
        find_links=options.find_links,
        sources=(),
        constraints=options.constraints,
        no_binary=options.no_binary,
        only_binary=options.only_binary,
    )
    request = replace(task.request, environment=environment, newest=task.cutoffs.pip)
    wheels = [package for package in foreign.packages if package.manager == "pip"]
    conda = [*(package for package in foreign.packages if package not in wheels), *added]
    with working(request.reporter, "solving pip packages"):
        packages = solve_pip(request, conda, wheels, task.builder)
    listed = {pin.name for pin in foreign.pinned}
    for package in packages:
        if canonicalize_name(package.name) not in listed:
            missing = f"does not list {package.name}, which its packages need"
            task.request.reporter.warn(f"{task.path}: {missing}: {package.version} was added")
    return packages


def _build_sources(
    task: _Task, foreign: ForeignLock, packages: Sequence[LockedPackage]
) -> list[LockedPackage]:
    """Return the packages that the lock pins as source, with wheels built in the image.

    Raises:
        LockError: a package is locked as source, and nothing can be built; or the project's code
            requires what the lock does not have.
        WheelError: a wheel cannot be built.
    """
    found, built, platform = [], list[BuiltWheel](), task.request.recipe.platform
    for source in foreign.sources:
        if task.builder is None:
            raise LockError(
                f"{source.where}: {source.name or source.url} is locked as source ({source.kind})",
                f"lock a version of it that has a wheel for {platform}",
            )
        wheel = task.builder.build(_in_project(task, source), packages)
        built.append(wheel)
        found.append(wheel_package(wheel, platform))
    for wheel in built:
        if wheel.locked.kind == "local":
            _check_requirements(task, wheel, [*packages, *found])
    return found


def _check_requirements(task: _Task, wheel: BuiltWheel, packages: Sequence[LockedPackage]) -> None:
    """Raise LockError if the project's code requires what the lock does not have."""
    recipe, settings = task.request.recipe, task.request.settings
    made = fetched_wheel(wheel, recipe.platform)
    missing = missing_requirements(made, packages, recipe.platform, settings)
    if missing:
        problem = f"{task.path}: {wheel.name} requires {', '.join(missing)}, which is not in it"
        raise LockError(problem, f"{relock_command(task.path)}, then: builder lock {recipe.name}")


def _in_project(task: _Task, source: SourceSpec) -> SourceSpec:
    """Return a source of the lock with a path relative to the project.

    Raises:
        LockError: it is a path outside of the project, or no address or commit of git.
    """
    url = source.url
    if source.kind == "git":
        _check_repository(source)
    elif not url.startswith(("http://", "https://")):
        path = Path(os.path.normpath(task.path.parent / url))
        root = task.request.recipe.root.absolute()
        if "://" in url or not path.is_relative_to(root):
            hint = wider_project(root, path, str(task.path)) or "move it into the project"
            problem = f"{redact(url)} is outside of the project {root}"
            raise LockError(f"{source.where}: {problem}", hint)
        url = path.relative_to(root).as_posix()
    text = url if source.kind == "local" else f"{source.name} @ {url}"
    return replace(source, url=url, extras=(), marker="", text=text)


def _check_repository(source: SourceSpec) -> None:
    """Raise LockError for a URL or revision that git takes for an option."""
    host = source.url.partition("://")[2]
    where = f"{source.where}: {source.name}"
    if not source.url.startswith(GIT_URLS) or host.startswith("-"):
        problem = f"{redact(source.url)[:200]!r} is no address of a repository"
        raise LockError(f"{where}: {problem}", "lock it from https://HOST/OWNER/NAME")
    if not GIT_HASH.fullmatch(source.revision):
        hint = f"lock again with the tool that wrote {source.where.partition(':')[0]}"
        raise LockError(f"{where}: {source.revision[:80]!r} is no commit", hint)


def _check_urls(task: _Task, foreign: ForeignLock) -> None:
    """Look at the URLs of what an index or builder itself fetches.

    Raises:
        LockError: one has a variable that the project's own files do not name for it: the value may
            be secret, and whoever wrote the file chose the host. Or it would be more than one line
            for uv.
    """
    texts = [(source.where, source.url) for source in foreign.sources]
    texts += [(pin.where, pin.text.removeprefix(f"{pin.name} @ ")) for pin in foreign.pinned]
    texts += [(str(task.path), option.partition(" ")[2]) for option in foreign.index_options]
    allowed = task.inputs.url_variables
    for where, url in texts:
        if _CONTROL.search(url):
            raise LockError(f"{where}: {redact(url)!r} has a control character", "lock again")
        for name in allowed.missing(url):
            raise LockError(
                f"{where or task.path}: {redact(url)}: a foreign lock cannot name the variable {name}",
                "name the URL in the project: pip: {extra_index_urls: [URL]} in the recipe",
            )


# messages -----------------------------------------------------------------------------------------


def _notes(
    path: Path, foreign: ForeignLock, lock: Lock, added: Sequence[LockedPackage]
) -> Iterator[str]:
    """Yield notes on what was imported and added."""
    for option in foreign.index_options:  # which is not one of the project's
        yield f"{path.name} chooses where packages are from: {redact(option)}"
    if skipped := sorted({s.name for s in foreign.skipped if _OF_PYTHON.search(s.text)}):
        yield f"{path.name} has {', '.join(skipped)} for other versions of Python"
    number = len(lock.packages) - len(added)
    yield f"{number} packages imported from {path.name}, {foreign.tool}"
    for package in added:
        if package.name == "python":
            more = f" and {len(added) - 1} more conda packages" if len(added) > 1 else ""
            yield f"added python {package.version}{more} from {', '.join(lock.channels) or 'the base'}"
