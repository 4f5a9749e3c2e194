"""Checks a wheel that was built: its name, its tags and its files."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion

from builder.core.errors import WheelError
from builder.core.model import Fetched, LockedPackage
from builder.formats.layers.wheel_archive import WheelArchive
from builder.lock.config.recipe import Recipe
from builder.lock.wheels import target_tags


def check_wheel(
    folder: Path, wanted: str, name: str | None, recipe: Recipe, python: str
) -> Fetched:
    """Check what a build left in its folder; return the wheel, without hash.

    Args:
        folder: the folder for finished wheels.
        wanted: the package, for messages.
        name: the name that the wheel has to have, normalised; None: any.
        recipe: the target.
        python: the version of the target's Python.

    Raises:
        WheelError: there is not exactly one wheel, it is another package's, it does not fit the
            target, or it is damaged.
    """
    path = _only_wheel(folder, wanted)
    try:
        found, version, _, tags = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as e:
        raise WheelError(f"{wanted}: its build made {path.name!r}: {e}") from None
    if name is not None and found != name:
        hint = f"write the name of the package: {found} @ URL"
        raise WheelError(f"{wanted}: its source is that of the package {found}, not {name}", hint)
    if tags.isdisjoint(target_tags(recipe, python)):
        raise WheelError(
            f"{wanted}: its build made {path.name}, which is not for Python {python} on {recipe.platform}",
            "correct the settings of the build (env, config_settings), or use another version",
        )
    package = LockedPackage(found, str(version), "pip", recipe.platform, path.name, None)
    fetched = Fetched(package, path, path.stat().st_size)
    with WheelArchive(fetched):  # checks its members
        return fetched


def _only_wheel(folder: Path, wanted: str) -> Path:
    wheels = [path for path in sorted(folder.iterdir()) if path.name.endswith(".whl")]
    if len(wheels) != 1 or wheels[0].is_symlink() or not wheels[0].is_file():
        made = ", ".join(path.name for path in wheels) or "no wheel"
        raise WheelError(f"{wanted}: its build has to make one wheel, and made {made}")
    return wheels[0]
