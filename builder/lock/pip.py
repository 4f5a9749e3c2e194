"""Solves the pip part of a lock with uv, on top of the conda packages. Wheels only: uv builds and
runs nothing. Packages without a wheel are built before, see sourcesolve.py.

uv must not choose a package that conda provides already. So each conda package of Python becomes a
*stub*, a wheel with metadata only, and a constraint that pins its version to the stub::

    conda provides numpy 1.26.4, the pip section asks for "model", which needs numpy>=1.20

    stubs/numpy-1.26.4-py3-none-any.whl          (no dependencies: these are conda's concern)
    constraints.txt:  numpy @ file:///.../stubs/numpy-1.26.4-py3-none-any.whl
    requirements.in:  model
    overrides.txt:    packages that the environment names by one URL, and another package by another
    uv.toml:          index-url = ..., find-links = [...]

uv then solves for "model" with this numpy, and numpy is left out of the result.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.core.errors import ConfigError, SolveError
from builder.core.markers import applies
from builder.core.model import LockedPackage
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.temporary import temporary_folder

from .config.fields import line
from .indexes import Indexes, check_kind, find_indexes, toml_document
from .names import conda_mapping, pypi_name
from .request import SolveRequest, WheelBuilder
from .sourcesolve import SourceSolver, write_stub
from .spec import SourceSpec, Spec
from .tomlfile import loads
from .uv import run_uv
from .wheels import WheelChooser

log = logging.getLogger(__name__)


def solve_pip(
    request: SolveRequest,
    conda: Sequence[LockedPackage],
    installed: Sequence[LockedPackage] = (),
    builder: WheelBuilder | None = None,
) -> list[LockedPackage]:
    """Return the wheels that the pip section needs, without packages that conda provides.

    Args:
        request: the environment and the target; ``previous`` and ``update`` are those of pip
            packages.
        conda: the solved conda packages.
        installed: pip packages that are there already; they count as those of conda do.
        builder: builds wheels of source packages; None: these are errors.

    Raises:
        ConfigError: a find-links folder does not exist, or a variable in a URL is not set.
        SolveError: no set of wheels satisfies the pip section; the message contains uv's reason.
        FetchError: an index does not answer, and the recipe names no fallback, or one of another
            kind.
        WheelError: a wheel cannot be built from its source.
    """
    python = next((package for package in conda if package.name == "python"), None)
    if python is None:
        problem = "there is a pip section, but no python among the conda packages"
        hint = "add 'python=3.11' to dependencies:"
        raise SolveError(f"{request.environment.path}: {problem}", hint)
    provided: dict[str, str] = {canonicalize_name(p.name): p.version for p in installed}
    provided |= _provided(conda, request.settings)
    _warn_about_extras(request, provided)
    indexes = find_indexes(request)
    log.info("pip packages are from %s", ", ".join(map(redact, indexes.urls)) or "no index")
    chooser = WheelChooser(request, python.python_version, indexes.urls)
    with temporary_folder(request.settings.tmpdir, 0o700) as folder:
        sourced = SourceSolver(request, conda, indexes, folder, builder)
        warnings: dict[str, None] = {}
        with_built = replace(indexes, find_links=(*indexes.find_links, sourced.links.as_uri()))

        def solve(requirements: Sequence[str], constraints: Sequence[str]) -> list[dict[str, Any]]:
            files = {"requirements.in": requirements, "constraints.txt": constraints}
            files["overrides.txt"] = sourced.overrides
            solved, found = _solve(request, python.python_version, provided, with_built, files)
            warnings.update(dict.fromkeys(found))
            taken = [package for package in solved if package["name"] not in provided]
            check_kind(request, indexes.unreachable, taken)
            return taken

        def locked(solved: Sequence[Mapping[str, Any]]) -> list[LockedPackage]:
            return [sourced.package(found["name"]) or chooser.locked(found) for found in solved]

        packages = locked(sourced.solve(solve, locked))
        _check_pins(request, python.python_version, packages)
        for text in (*warnings, *_prereleases(request, packages)):
            request.reporter.warn(f"{request.environment.path}: {text}")
        return packages


def refuse_skipped(request: SolveRequest, packages: Sequence[LockedPackage]) -> None:
    """Raise SolveError if no wheel was found, and the environment has requirements alone.

    Their markers are false then.
    """
    environment = request.environment
    names = {spec.name for spec in environment.conda} - {"python", "pip"}
    entries: list[Spec | SourceSpec] = [*environment.pip, *environment.sources]
    if not packages and not names:
        problem = "this marker and all others are false for the target and its Python"
        raise SolveError(
            f"{entries[0].where}: {redact(entries[0].text)}: {problem}",
            "name another Python, such as 3.11 in .python-version or python=3.11 in the environment",
        )


def _check_pins(request: SolveRequest, python: str, packages: Sequence[LockedPackage]) -> None:
    """Refuse a package that others need, and whose index is for a line that is not for the target.

    uv lock takes that index for it, too; uv pip compile (0.13) does not.
    """
    environment, platform = request.environment, request.recipe.platform
    found = {p.name for p in packages}.intersection(pin.name for pin in environment.pins)
    specs = [spec for spec in environment.pip if spec.name in found]
    active = {s.name for s in specs if applies(Requirement(s.text).marker, platform, python)}
    for spec in (spec for spec in specs if spec.name not in active):
        problem = (
            f"{spec.where}: {spec.name} is needed by others, and its index is for this line alone"
        )
        raise SolveError(problem, f"add a line without a marker: {spec.name}")


def _solve(
    request: SolveRequest,
    python: str,
    provided: Mapping[str, str],
    indexes: Indexes,
    files: Mapping[str, Sequence[str]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the packages of uv's ``pylock.toml`` (PEP 751), and uv's warnings.

    ``files`` are lines for uv's files of requirements, besides those of the environment.
    """
    path = request.environment.path
    with temporary_folder(request.settings.tmpdir, 0o700) as folder:  # only this user can read it
        stubs = _stubs(folder / "stubs", provided)
        named = [spec.text for spec in request.environment.constraints]
        more = {"constraints.txt": [*stubs, *named]}
        more["requirements.in"] = [spec.text for spec in request.environment.pip]
        for name, lines in files.items():
            _write_requirements(folder / name, [*lines, *more.get(name, ())], path)
        # URLs may contain passwords: never in arguments
        (folder / "uv.toml").write_text(indexes.uv_toml(str(path), request.environment.uv))
        pins = {pin.name for pin in indexes.pins}.difference(provided)
        if pinned := [spec.text for spec in request.environment.pip if spec.name in pins]:
            (folder / "pyproject.toml").write_text(indexes.pyproject(pinned, str(path)))
        if request.previous:
            (folder / "pylock.toml").write_text(_preferences(request.previous))
        warnings = run_uv(folder, request, python, provided, indexes)
        solved = loads((folder / "pylock.toml").read_text())
    packages: list[dict[str, Any]] = solved.get("packages", [])
    return packages, warnings


def _prereleases(request: SolveRequest, packages: Sequence[LockedPackage]) -> list[str]:
    """Return a warning about pre-releases that no requirement names: no other release fits."""
    specs = {spec.name: Requirement(spec.text).specifier for spec in request.environment.pip}
    asked = {name for name, specifier in specs.items() if specifier.prereleases}
    found = [
        f"{package.name} {package.version}"
        for package in packages
        if Version(package.version).is_prerelease
        and not package.source
        and package.name not in asked
    ]
    return [f"pre-releases, as no other release fits: {', '.join(found)}"] if found else []


def _write_requirements(path: Path, lines: Sequence[str], named_by: Path) -> None:
    """Write requirements for uv, which would take ``-e FOLDER`` too, and replace variables.

    Raises:
        ConfigError: a line is not one requirement, or has a variable.
    """
    for text in lines:
        try:
            Requirement(line(text))
            if "$" in text:
                problem = "variables are for URLs of indexes; credentials belong into ~/.netrc"
                raise ValueError(problem)
        except (ValueError, RecursionError) as e:
            problem = f"{named_by}: uv cannot take {redact(text)!r}: {str(e).splitlines()[0]}"
            raise ConfigError(problem, "write NAME, NAME==VERSION or NAME @ URL") from None
    path.write_text("".join(f"{text}\n" for text in lines))


def _preferences(previous: Sequence[LockedPackage]) -> str:
    """Return a ``pylock.toml`` with the versions of an earlier lock, which uv prefers."""
    packages = [{"name": canonicalize_name(p.name), "version": p.version} for p in previous]
    return toml_document({"lock-version": "1.0", "created-by": "builder", "packages": packages})


# packages that conda provides


def _provided(conda: Sequence[LockedPackage], settings: Settings) -> dict[str, str]:
    """Return the PyPI names and versions of the conda packages that are Python packages.

    As in conda-lock, these are the ones that depend on python.
    """
    python_packages = [package for package in conda if "python" in package.dependencies]
    is_plain = {package.name for package in python_packages} <= {"pip", "setuptools", "wheel"}
    mapping = None if is_plain else conda_mapping(settings)
    provided: dict[str, str] = {}
    for package in python_packages:
        name = pypi_name(package.name, mapping)
        if name in provided and name == canonicalize_name(package.name):
            continue  # conda's python-xxhash is PyPI's xxhash; conda's xxhash is the C library
        provided[name] = _pep440(package.version)
    return dict(sorted(provided.items()))


def _pep440(version: str) -> str:
    """Return a conda version as a version of PEP 440; where that is impossible, its numbers."""
    try:
        return str(Version(version))
    except InvalidVersion:
        return ".".join(re.findall(r"\d+", version)) or "0"


def _warn_about_extras(request: SolveRequest, provided: Mapping[str, str]) -> None:
    """Warn about extras of a package that conda provides: a stub has no dependencies."""
    for spec in request.environment.pip:
        if spec.name not in provided:
            continue
        extras = ", ".join(sorted(Requirement(spec.text).extras))
        if extras:
            request.reporter.warn(
                f"{spec.where}: conda provides {spec.name}, so its extra {extras} has no effect: "
                "list the packages that the extra needs"
            )


def _stubs(folder: Path, provided: Mapping[str, str]) -> list[str]:
    """Write the stubs of what conda provides into a new folder; return constraints with them."""
    folder.mkdir()
    stubs = {name: write_stub(folder, name, version) for name, version in provided.items()}
    return [f"{name} @ {path.as_uri()}" for name, path in stubs.items()]
