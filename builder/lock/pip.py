"""Solves the pip part of a lock with uv, on top of the conda packages. Wheels only: nothing is built or run.

uv must not choose a package that conda provides already. So each conda package of Python becomes a *stub*, a
wheel with metadata only, and a constraint that pins its version to the stub::

    conda provides numpy 1.26.4, the pip section asks for "model", which needs numpy>=1.20

    stubs/numpy-1.26.4-py3-none-any.whl          (no dependencies: these are conda's concern)
    constraints.txt:  numpy @ file:///.../stubs/numpy-1.26.4-py3-none-any.whl
    requirements.in:  --find-links ...
                      model

uv then solves for "model" with this numpy, and numpy is left out of the result.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.errors import SolveError
from builder.lock.indexes import requirement_lines
from builder.lock.names import BUILTIN, conda_mapping, pypi_name
from builder.lock.request import SolveRequest
from builder.lock.spec import Spec
from builder.lock.uv import run_uv
from builder.lock.wheels import WheelChooser
from builder.model import LockedPackage
from builder.settings import Settings
from builder.store.temporary import temporary_name


def solve_pip(request: SolveRequest, conda: Sequence[LockedPackage]) -> list[LockedPackage]:
    """The wheels that the environment's pip section needs, without any package that conda provides.

    Args:
        request: the environment and the target; ``previous`` and ``update`` are those of pip packages.
        conda: the solved conda packages.

    Raises:
        ConfigError: a find-links folder does not exist, or a variable in a URL is not set.
        SolveError: no set of wheels satisfies the pip section; the message contains uv's reason.
        FetchError: an index does not answer, and the recipe names no fallback.
    """
    python = next((package for package in conda if package.name == "python"), None)
    if python is None:
        raise SolveError(
            f"{request.environment.path}: there is a pip section, but no python among the conda packages",
            "add 'python=3.11' to dependencies:",
        )
    provided = _provided(conda, request.settings)
    _warn_about_extras(request, provided)
    sources = requirement_lines(request)
    solved = _solve(request, python.version, provided, sources)
    chooser = WheelChooser(request, python.version, sources)
    return [chooser.locked(package) for package in solved if package["name"] not in provided]


def _solve(
    request: SolveRequest, python: str, provided: Mapping[str, str], sources: Sequence[str]
) -> list[dict[str, Any]]:
    """The packages of uv's ``pylock.toml`` (PEP 751)."""
    tmpdir = request.settings.tmpdir
    tmpdir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=temporary_name() + "-", dir=tmpdir) as name:
        work = Path(name)
        _write_constraints(work, provided, request.environment.constraints)
        # URLs may contain passwords: they are in a file that only this user can read, never in arguments.
        requirements = [*sources, *(spec.line for spec in request.environment.pip)]
        (work / "requirements.in").write_text("".join(f"{line}\n" for line in requirements))
        if request.previous:
            (work / "pylock.toml").write_text(_preferences(request.previous))
        run_uv(work, request, python, provided, sources)
        solved = tomllib.loads((work / "pylock.toml").read_text())
    packages: list[dict[str, Any]] = solved.get("packages", [])
    return packages


def _preferences(previous: Sequence[LockedPackage]) -> str:
    """A ``pylock.toml`` with the versions of an earlier lock, which uv prefers."""
    lines = ['lock-version = "1.0"', 'created-by = "builder"']
    for package in previous:
        lines += [
            "[[packages]]",
            f'name = "{canonicalize_name(package.name)}"',
            f'version = "{package.version}"',
        ]
    return "\n".join(lines) + "\n"


# packages that conda provides


def _provided(conda: Sequence[LockedPackage], settings: Settings) -> dict[str, str]:
    """PyPI names and versions of the conda packages that are Python packages.

    As in conda-lock, these are the ones that depend on python.
    """
    python_packages = [package for package in conda if "python" in package.dependencies]
    is_plain = {package.name for package in python_packages} <= {"pip", "setuptools", "wheel"}
    mapping = BUILTIN if is_plain else conda_mapping(settings)
    provided: dict[str, str] = {}
    for package in python_packages:
        name = pypi_name(package.name, mapping)
        if name in provided and name == canonicalize_name(package.name):
            continue  # conda's python-xxhash is PyPI's xxhash; conda's xxhash is the C library
        provided[name] = _pep440(package.version)
    return dict(sorted(provided.items()))


def _pep440(version: str) -> str:
    """A conda version as a version of PEP 440; where that is impossible, its numbers."""
    try:
        return str(Version(version))
    except InvalidVersion:
        return ".".join(re.findall(r"\d+", version)) or "0"


def _warn_about_extras(request: SolveRequest, provided: Mapping[str, str]) -> None:
    """A stub has no dependencies, so the extras of a package that conda provides have no effect."""
    for spec in request.environment.pip:
        if spec.name not in provided:
            continue
        extras = ", ".join(sorted(Requirement(spec.text).extras))
        if extras:
            request.reporter.warn(
                f"{spec.where}: conda provides {spec.name}, so its extra {extras} has no effect: "
                "list the packages that the extra needs"
            )


def _write_constraints(work: Path, provided: Mapping[str, str], named: Sequence[Spec]) -> None:
    """Writes the versions that conda provides, and the user's own constraints."""
    (work / "stubs").mkdir()
    stubs = {name: _stub(work / "stubs", name, version) for name, version in provided.items()}
    lines = [f"{name} @ {stub.as_uri()}\n" for name, stub in stubs.items()]
    lines += [f"{spec.text}\n" for spec in named]
    (work / "constraints.txt").write_text("".join(lines))


def _stub(folder: Path, name: str, version: str) -> Path:
    """A wheel with metadata only and without dependencies."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nGenerator: builder\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", tags)
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path
