"""The conda packages of a target with ``python: base``: the Python of its base image alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.config.recipe import Recipe
from builder.config.yamlfile import place_of
from builder.errors import ConfigError, SolveError
from builder.model import Lock, LockedBase, LockedPackage

if TYPE_CHECKING:
    from builder.lock.request import SolveRequest

#: conda packages that an environment may name. pip's is not installed: what needs it is built elsewhere.
_ALLOWED = frozenset({"python", "pip"})


def check_base_python(recipe: Recipe) -> None:
    """Checks what ``python: base`` cannot be combined with.

    Raises:
        ConfigError: the recipe uses a lock of conda-lock, which has a Python.
    """
    if recipe.uses_base_python and recipe.uses_lock_unchanged:
        raise ConfigError(
            f"{place_of(recipe.source, 'python')}: {recipe.lock} is used unchanged, with its own Python",
            "remove 'python:' or 'lock:' from the recipe",
        )


def has_base_python(lock: Lock, base: LockedBase | None) -> bool:
    """Whether a lock has the Python of the base, if the target uses that one; else True."""
    return base is None or base.python is None or base.python in lock.packages


def take_base_python(request: SolveRequest, python: LockedPackage) -> LockedPackage:
    """The only conda package of an environment that uses the base's Python, which this is checked for.

    Raises:
        SolveError: the environment names other conda packages, or another version of Python.
        ConfigError: a spec is not valid.
    """
    from rattler import Version, VersionSpec

    from builder.lock.conda import parsed_spec

    recipe = request.recipe
    for spec in request.environment.conda:
        if spec.name not in _ALLOWED:
            raise SolveError(
                f"{spec.where}: {spec.name} is a conda package, and {place_of(recipe.source, 'python')} "
                "takes Python from the base",
                f"move {spec.name} below the item '- pip:', or remove 'python:' from the recipe",
            )
        wanted = parsed_spec(spec).version if spec.name == "python" else None
        if wanted is not None and not VersionSpec(str(wanted)).matches(Version(python.version)):
            raise SolveError(
                f"{spec.where}: {spec.text}: the base {recipe.base} has Python {python.version}",
                "ask for this version, name another base, or remove 'python:' from the recipe",
            )
    request.reporter.note(f"{recipe.name}: Python {python.version} of the base")
    return python


def refuse_conda_packages(recipe: Recipe, packages: Sequence[LockedPackage], where: str) -> None:
    """Raises SolveError if an imported lock of a target with ``python: base`` has conda packages."""
    names = [package.name for package in packages if package.manager == "conda"]
    if recipe.uses_base_python and names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise SolveError(
            f"{where}: has conda packages ({shown}), and "
            f"{place_of(recipe.source, 'python')} takes Python from the base",
            "remove 'python:' from the recipe",
        )
