"""The conda packages of a target with ``python: base``: the Python of its base image alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.core.errors import ConfigError, SolveError
from builder.core.model import Lock, LockedBase, LockedPackage

from .condaspec import parsed_spec
from .config.recipe import Recipe
from .config.yamlfile import place_of

if TYPE_CHECKING:
    from .request import SolveRequest
    from .spec import Spec

#: Bases by the version of their Python: those that builder makes, and images of Docker Hub.
_IMAGE = "docker://docker.io/library/python"
_BASES = {"3.13.5": "debian:trixie", "3.11.2": "debian:bookworm"}
_BASES |= {f"3.{minor}.99": f"{_IMAGE}:3.{minor}-slim" for minor in range(9, 15)}
#: Files in which the user chooses a Python. A project file or a lock requires one.
_CHOICE = re.compile(r"\.(ya?ml|python-version)(:\d+)?$")
#: conda packages that an environment may name. pip's is not installed: what needs it is built
#: elsewhere.
_ALLOWED = frozenset({"python", "pip"})


def check_base_python(recipe: Recipe) -> None:
    """Check what ``python: base`` cannot be combined with.

    Raises:
        ConfigError: the recipe uses a lock of conda-lock, which has a Python.
    """
    if recipe.uses_base_python and recipe.uses_lock_unchanged:
        raise ConfigError(
            f"{place_of(recipe.source, 'python')}: {recipe.lock} is used unchanged, with its own Python",
            "remove 'python:' or 'lock:' from the recipe",
        )


def has_base_python(lock: Lock, base: LockedBase | None) -> bool:
    """Return whether a lock has the Python of the base, if the target uses that one; else True."""
    return base is None or base.python is None or base.python in lock.packages


def take_base_python(request: SolveRequest, python: LockedPackage) -> LockedPackage:
    """Return the base's Python as the only conda package, if the environment accepts it.

    Raises:
        SolveError: the environment names other conda packages, or another version of Python.
        ConfigError: a spec is not valid.
    """
    recipe = request.recipe
    for spec in request.environment.conda:
        if spec.name not in _ALLOWED:
            raise SolveError(
                f"{spec.where}: {spec.name} is a conda package, and {place_of(recipe.source, 'python')} "
                "takes Python from the base",
                f"move {spec.name} below the item '- pip:', or remove 'python:' from the recipe",
            )
        if spec.name == "python" and not _accepted([spec], [python.version]):
            raise SolveError(
                f"{spec.where}: {spec.text}: the base {recipe.base} has Python {python.version}",
                python_hint(request, [python.version]),
            )
    request.reporter.note(f"{recipe.name}: Python {python.version} of the base")
    return python


def python_hint(request: SolveRequest, versions: Sequence[str]) -> str:
    """Return the hint for an environment that accepts none of these versions of Python."""
    recipe, conda = request.recipe, request.environment.conda
    specs = [spec for spec in conda if spec.name == "python"]
    chosen = [spec for spec in specs if _CHOICE.search(spec.where)]
    version = _accepted([spec for spec in specs if spec not in chosen], versions)
    minor = version.rpartition(".")[0]
    hints = [f"name Python {minor} in {spec.where}" for spec in chosen if minor]
    if any(spec.name not in _ALLOWED for spec in conda):
        return "; or ".join([*hints, "name a channel that has another Python"])
    base = _BASES.get(_accepted(specs, list(_BASES)), f"{_IMAGE}:VERSION-slim")
    lines = f"base: {base}, python: base"
    if base.startswith("debian:"):
        packages = dict.fromkeys([*recipe.base_packages, "python3"])
        lines += f", base_packages: [{', '.join(packages)}]"
    return "; or ".join([*hints, f"take the Python of another base, in {recipe.source}: {lines}"])


def _accepted(specs: Sequence[Spec], versions: Sequence[str]) -> str:
    """Return the first version that all specs of Python accept; empty if there is none."""
    from rattler import Version, VersionSpec

    wanted = [VersionSpec(str(parsed_spec(spec)[1].version or "*")) for spec in specs]
    return next((v for v in versions if all(spec.matches(Version(v)) for spec in wanted)), "")


def refuse_conda_packages(recipe: Recipe, packages: Sequence[LockedPackage], where: str) -> None:
    """Raise SolveError if an imported lock of a target with ``python: base`` has conda packages."""
    names = [package.name for package in packages if package.manager == "conda"]
    if recipe.uses_base_python and names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise SolveError(
            f"{where}: has conda packages ({shown}), and "
            f"{place_of(recipe.source, 'python')} takes Python from the base",
            "remove 'python:' from the recipe",
        )
