"""From the lock of another tool to builder's own lock: the same packages, and what that lock lacks.

A lock of pip packages has no Python, so it is solved from the conda channels; no lock pins a base image::

    uv.lock: flask 3.1.0, werkzeug 3.1.3   ->   flask 3.1.0, werkzeug 3.1.3     as in uv.lock
    requires-python: ">=3.11"                   python 3.11.9, openssl, ...     solved: python 3.11.*|3.12.*
                                                builder.base-digest             the recipe's base

The versions of Python to choose from are those for which every package of the lock has a wheel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from builder.config.recipe import Recipe
from builder.errors import LockError, UsageError
from builder.lock.basepython import refuse_conda_packages
from builder.lock.environment import recipe_environment
from builder.lock.formats import ForeignLock, ForeignSource, PinnedRequirement, foreign_python, read_foreign
from builder.lock.groups import LEFT_OUT, left_out_line
from builder.lock.inputs import channels, missing, virtual_packages
from builder.lock.manifests import CHANNEL, is_manifest, pinned_python
from builder.lock.names import pypi_name
from builder.lock.pipsection import PipSection
from builder.lock.request import LockRequest, SolveRequest, WheelBuilder
from builder.lock.solve import Cutoffs, finish_lock, solve_conda_packages, solve_pip_packages
from builder.lock.sourcerecords import GIT_HASH, GIT_URLS
from builder.lock.sourcesolve import wheel_package
from builder.lock.spec import SourceSpec, Spec
from builder.lock.urls import public, url_variables
from builder.model import FIND_LINKS, MAIN, Lock, LockedPackage
from builder.net.mirrors import public_url
from builder.net.urlvariables import UrlVariables
from builder.progress import Reporter
from builder.redact import redact
from builder.settings import Settings

#: Key of the metadata: what the lock was imported from. Its name and hash are among the lock's inputs.
_TOOL = "builder.imported-tool"
#: Minor versions of Python 3 that a lock may be for.
_MINORS = range(8, 16)
#: conda packages that a lock of pip packages may have too: its wheel is used.
_INSTALLERS = frozenset({"pip", "setuptools", "wheel"})


def import_lock(request: LockRequest) -> Lock:
    """The lock of a target, made from the lock of another tool that its recipe names. Writes nothing.

    All versions are those of the file: ``previous`` is not used, and ``exclude_newer`` concerns only what the
    file lacks.

    Raises:
        LockError: the file is damaged, has nothing for this target, or lacks what the environment asks for.
        UsageError: ``update`` names a package.
        SolveError: no Python satisfies the lock; the message contains the solver's reason.
        FetchError: a channel or index does not answer, and the recipe names no fallback.
        WheelError: a wheel cannot be built from its source.
    """
    recipe, path = request.recipe, request.recipe.imported_lock
    assert path is not None
    if request.update:
        raise UsageError(
            f"--update {request.update[0]}: the versions of target {recipe.name} are those of {path.name}",
            f"update it with the tool that wrote {path.name}, then: builder lock {recipe.name}",
        )
    environment = recipe_environment(recipe)
    cutoffs = Cutoffs.of(recipe, request.exclude_newer)
    to_solve = _with_channels(
        SolveRequest(recipe, environment, request.settings, reporter=request.reporter, base=request.base)
    )
    imported = _import(_Task(to_solve, cutoffs, path, request.wheel_builder))
    extra = {_TOOL: imported.foreign.tool, **cutoffs.metadata}
    groups = recipe.groups or (MAIN,)
    if line := left_out_line(groups, len(imported.left_out), imported.left_out_groups):
        extra[LEFT_OUT] = line
    lock = finish_lock(request, imported.packages, imported.channels, path, extra)
    if lacking := missing(recipe, lock):
        raise LockError("\n".join(lacking), f"lock it with the tool that wrote {path.name}")
    _report(recipe, imported, request.reporter)
    return lock


@dataclass(frozen=True)
class _Task:
    """One lock to import."""

    request: SolveRequest
    """Of the target, with the channels from which Python is solved."""
    cutoffs: Cutoffs
    path: Path
    """The lock of the other tool."""
    builder: WheelBuilder | None
    """None: a package that is locked as source is an error."""

    def read(self, python: str | None, groups: Sequence[str] | None = None) -> ForeignLock:
        """The packages of the lock for a version of Python, of the recipe's groups or of others."""
        recipe = self.request.recipe
        return read_foreign(
            self.path,
            recipe.platform,
            python_version=python,
            root=recipe.root,
            groups=recipe.groups if groups is None else groups,
            environment=recipe.lock_environment,
            virtual=virtual_packages(recipe),
        )


@dataclass(frozen=True)
class _Imported:
    """What was imported."""

    foreign: ForeignLock
    packages: tuple[LockedPackage, ...]
    added: tuple[LockedPackage, ...]
    """The conda packages that were solved."""
    channels: tuple[str, ...]
    left_out: frozenset[str]
    """The names of packages that only groups have which were left out."""
    left_out_groups: tuple[str, ...]
    """These groups."""


def _import(task: _Task) -> _Imported:
    """What becomes the lock: a lock of pip packages gets a Python first, as its markers and wheels need one.

    Raises:
        LockError, SolveError, FetchError, WheelError: see :func:`import_lock`.
    """
    needed = foreign_python(task.path)
    if needed is None:
        foreign = task.read(None)
        refuse_conda_packages(task.request.recipe, foreign.packages, str(task.path))
        added: list[LockedPackage] = []
        found_in = foreign.channels
        python = None
    else:
        added, found_in = _solve_python(task, needed)
        python = next(package.version for package in added if package.name == "python")
        foreign = task.read(python)
    _check_urls(task, foreign)
    packages = [_public(package, task.request.settings) for package in foreign.packages]
    if foreign.pinned:
        packages += _resolved(task, foreign, added)
    packages += _built(task, foreign, [*added, *packages])
    _refuse_duplicates(task, packages, added)
    names, groups = _others(task, foreign, python)
    return _Imported(foreign, (*packages, *added), tuple(added), tuple(found_in), names, groups)


# Python ----------------------------------------------------------------------------------------------------


def _with_channels(request: SolveRequest) -> SolveRequest:
    """A request with the channels from which Python is solved."""
    named = channels(request.recipe, request.environment)
    return replace(request, environment=replace(request.environment, channels=named or (CHANNEL,)))


def _solve_python(task: _Task, needed: str) -> tuple[list[LockedPackage], tuple[str, ...]]:
    """The conda packages of the environment file, and a Python that fits the lock.

    Raises:
        LockError: no version of Python fits.
        SolveError: the channels have none of those that fit.
    """
    versions = _versions(task, needed)
    spec = Spec(f"python {'|'.join(f'{version}.*' for version in versions)}", "python", str(task.path))
    environment = task.request.environment
    conda = [s for s in environment.conda if s.text != "pip" or not is_manifest(environment.path)]
    pinned = pinned_python(task.path.parent)
    if pinned and not any(s.name == "python" and s.text.endswith(f"={pinned}") for s in conda):
        where = str(task.path.parent / ".python-version")
        conda.append(Spec(f"python={pinned}", "python", where))
    request = replace(
        task.request,
        newest=task.cutoffs.conda,
        environment=replace(environment, path=task.path, conda=(*conda, spec), pip=()),
    )
    return solve_conda_packages(request)


def _versions(task: _Task, needed: str) -> list[str]:
    """The minor versions of Python for which the lock has all its packages, the oldest first."""
    try:
        allowed = SpecifierSet(needed)
    except InvalidSpecifier:
        allowed = SpecifierSet()
    # ">=3.11.2" allows a later release of 3.11
    versions = [f"3.{minor}" for minor in _MINORS if f"3.{minor}.99" in allowed]
    fitting, problem = [], None
    for version in versions:
        try:
            task.read(version)
        except LockError as e:
            problem = e
        else:
            fitting.append(version)
    if not fitting:
        raise problem or LockError(
            f"{task.path}: requires Python {needed}, and builder knows 3.{_MINORS[0]} to 3.{_MINORS[-1]}",
            "lock again for one of these versions",
        )
    return fitting


# packages --------------------------------------------------------------------------------------------------


def _public(package: LockedPackage, settings: Settings) -> LockedPackage:
    """The package with its public URL, without credentials; for a wheel on this machine a URL by its name."""
    url = public_url(settings, package.url)
    if package.manager == "pip" and not url.startswith(("http://", "https://", "builder://")):
        url = FIND_LINKS + package.filename
    return replace(package, url=public(url))


def _resolved(task: _Task, foreign: ForeignLock, conda: Sequence[LockedPackage]) -> list[LockedPackage]:
    """The wheels of a requirements file, from the indexes, with one of the hashes of the file.

    Raises:
        LockError: the wheel that fits the target has another hash.
        SolveError: the indexes do not have a version.
    """
    own, section = task.request.environment, PipSection(task.path, task.request.recipe.root)
    for option in foreign.index_options:
        section.read(option, str(task.path))
    environment = replace(
        own,
        path=task.path,
        pip=tuple(_pinned_spec(pin) for pin in foreign.pinned),
        index_url=section.index or own.index_url,
        extra_index_urls=(*section.extra_indexes, *own.extra_index_urls),
        find_links=tuple(section.links),
        sources=(),
        constraints=(),
    )
    request = replace(task.request, environment=environment, newest=task.cutoffs.pip)
    packages = solve_pip_packages(request, conda, task.builder)
    hashes = {pin.name: pin for pin in foreign.pinned}
    for package in packages:
        pin = hashes.get(canonicalize_name(package.name))
        if pin is None:
            task.request.reporter.warn(
                f"{task.path}: does not list {package.name}, which its packages need: "
                f"{package.version} was added"
            )
        elif pin.sha256 and package.source is None and package.sha256 not in pin.sha256:
            raise LockError(
                f"{pin.where}: {package.filename}: its index has the sha256 {package.sha256}, which is not "
                "one of the file's",
                f"lock again for {task.request.recipe.platform} with the tool that wrote {task.path.name}",
            )
    return packages


def _pinned_spec(pin: PinnedRequirement) -> Spec:
    return Spec(
        pin.text, pin.name, pin.where, hashes=tuple(f"sha256:{value}" for value in sorted(pin.sha256))
    )


def _built(task: _Task, foreign: ForeignLock, packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    """The packages that the lock pins as source, with the wheels that are built from them in the image.

    Raises:
        LockError: a package is locked as source, and nothing can be built.
        WheelError: a wheel cannot be built.
    """
    found = []
    for source in foreign.sources:
        if task.builder is None:
            raise LockError(
                f"{source.where or task.path}: {source.name} is locked as source ({source.kind})",
                f"lock a version of {source.name} that has a wheel for {task.request.recipe.platform}",
            )
        wheel = task.builder.build(_source_spec(task, source), packages)
        found.append(wheel_package(wheel, task.request.recipe.platform))
    return found


def _source_spec(task: _Task, source: ForeignSource) -> SourceSpec:
    """A source of the lock as a requirement; a path relative to the project.

    Raises:
        LockError: it is a path outside of the project, or no address or commit of git.
    """
    url, where = source.url, source.where or str(task.path)
    if source.kind == "git":
        _check_repository(source, where)
    elif not url.startswith(("http://", "https://")):
        place, root = Path(os.path.normpath(task.path.parent / url)), task.request.recipe.root.absolute()
        if "://" in url or not place.is_relative_to(root):
            raise LockError(
                f"{where}: {redact(url)} is outside of the project {root}", "move it into the project"
            )
        url = place.relative_to(root).as_posix()
    return SourceSpec(
        source.kind,
        source.name,
        url,
        source.revision,
        source.subdirectory,
        editable=source.editable,
        sha256=source.sha256,
        where=where,
        text=url if source.kind == "local" else f"{source.name} @ {url}",
    )


def _check_repository(source: ForeignSource, where: str) -> None:
    """Raises LockError unless git takes URL and revision for what they are: others begin like its options."""
    host = source.url.partition("://")[2]
    if not source.url.startswith(GIT_URLS) or host.startswith("-"):
        raise LockError(
            f"{where}: {source.name}: {redact(source.url)[:200]!r} is no address of a repository",
            "lock it from https://HOST/OWNER/NAME",
        )
    if not GIT_HASH.fullmatch(source.revision):
        raise LockError(
            f"{where}: {source.name}: {source.revision[:80]!r} is no commit",
            f"lock again with the tool that wrote {where.partition(':')[0]}",
        )


def _check_urls(task: _Task, foreign: ForeignLock) -> None:
    """Looks at the URLs of what an index or builder itself fetches.

    Raises:
        LockError: one has a variable that the project's own files do not name for it: the value may be
            secret, and whoever wrote the file chose the host. Or it would be more than one line for uv.
    """
    texts = [(source.where, source.url) for source in foreign.sources]
    texts += [(pin.where, pin.text.removeprefix(f"{pin.name} @ ")) for pin in foreign.pinned]
    texts += [(str(task.path), option.partition(" ")[2]) for option in foreign.index_options]
    for where, url in texts:
        if any(ord(character) < 32 for character in url):
            raise LockError(f"{where}: {redact(url)!r} has a control character", "lock again")
    named = [(where, url) for where, url in texts if "$" in url]
    allowed = url_variables(task.request.recipe) if named else UrlVariables()
    for where, url in named:
        for name in allowed.missing(url):
            raise LockError(
                f"{where or task.path}: {redact(url)}: a foreign lock cannot name the variable {name}",
                "name the URL in the project: pip: {extra_index_urls: [URL]} in the recipe",
            )


def _refuse_duplicates(
    task: _Task, packages: Sequence[LockedPackage], added: Sequence[LockedPackage]
) -> None:
    """Raises LockError if conda packages of the environment file are in a lock of pip packages too."""
    names = {canonicalize_name(package.name) for package in packages if package.manager == "pip"}
    for package in added:
        name = pypi_name(package.name)
        if "python" in package.dependencies and name in names - _INSTALLERS:
            raise LockError(
                f"{task.request.environment.path}: {package.name} is among the conda packages, and "
                f"{task.path.name} has it as a wheel",
                "remove it from the conda packages of the environment file",
            )


# messages --------------------------------------------------------------------------------------------------


def _others(task: _Task, foreign: ForeignLock, python: str | None) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of packages that only groups have which were left out, and these groups."""
    taken, names, groups = _names(foreign), set(), []
    if foreign.format == "pixi":  # its groups are environments, of which one is chosen
        return frozenset(), ()
    for group in foreign.left_out:
        try:
            found = _names(task.read(python, [group])) - taken
        except LockError:  # a group that has nothing for this platform
            continue
        if found:
            groups.append(group)
            names |= found
    return frozenset(names), tuple(groups)


def _names(foreign: ForeignLock) -> set[str]:
    names = {package.name for package in foreign.packages}
    return names | {pin.name for pin in foreign.pinned} | {source.name for source in foreign.sources}


def _report(recipe: Recipe, imported: _Imported, reporter: Reporter) -> None:
    """Reports what was imported and added; what is left out is reported with each build."""
    foreign = imported.foreign
    for option in foreign.index_options:  # which is not one of the project's
        reporter.note(f"{recipe.name}: {foreign.path.name} chooses where packages are from: {redact(option)}")
    number = len(imported.packages) - len(imported.added)
    reporter.note(f"{recipe.name}: {number} packages imported from {foreign.path.name}, {foreign.tool}")
    python = next((package for package in imported.added if package.name == "python"), None)
    if python is not None:
        others = len(imported.added) - 1
        more = f" and {others} more conda packages" if others else ""
        source = ", ".join(imported.channels) or "the base"
        reporter.note(f"{recipe.name}: added python {python.version}{more} from {source}")
    for note in foreign.notes:
        reporter.note(f"{recipe.name}: {note}")
