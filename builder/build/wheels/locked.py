"""The built wheels of a lock: their folder in the project, and building those that no place has."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from builder.build.fetch.packages import fetch_for
from builder.core.errors import ConfigError, FetchError
from builder.core.model import Lock, LockedPackage
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.core.workspace import Workspace
from builder.formats.trees.inside import own_path
from builder.lock.config.recipe import Recipe, load_recipe, recipe_files
from builder.lock.inputs import WHEELS_FOLDER, Inputs, glibc_of


def place_wheels(lock: Lock, root: Path, store: Store) -> list[Path]:
    """Copy the built wheels of a lock into the project and return their paths.

    Two targets may need different wheels of one name (other Python packages or base): the second
    one is in a folder that is named after its digest.

    Raises:
        SpaceError: the disk is full.
    """
    placed = []
    for package in lock.packages:
        source = store.get(package.key) if package.source is not None else None
        if source is None:  # it came from the project
            continue
        targets = _places(package, root)
        is_there = (target for target in targets if store.verify(target, package.key))
        is_free = (target for target in targets if not target.exists())
        if target := next(is_there, None) or next(is_free, None):
            store.place(source, target, package.key)
            placed.append(target)
    return placed


def _places(package: LockedPackage, root: Path) -> tuple[Path, Path]:
    """Return where a built wheel may be in the project."""
    folder, name = own_path(root, WHEELS_FOLDER), package.filename
    return folder / name, folder / str(package.sha256)[:12] / name


def remove_unnamed(replaced: Sequence[LockedPackage], recipe: Recipe) -> None:
    """Remove the wheels of replaced packages from the project, unless a lock of it names them."""
    built = [package for package in replaced if package.source is not None]
    if not built:
        return
    try:
        paths = [load_recipe(name, recipe.root).lock_path for name in recipe_files(recipe.root)]
        locks = b"".join(path.read_bytes() for path in paths if path.exists())
    except (ConfigError, OSError):
        return  # what a target names is not known
    for package in built:
        if str(package.sha256).encode() in locks:
            continue
        for path in _places(package, recipe.root):
            # another run may have removed it; other wheels may be in its folder
            with contextlib.suppress(OSError):
                if sha256_file(path) == package.key:
                    path.unlink()
                    path.parent.rmdir()


def build_missing_wheels(
    inputs: Inputs, lock: Lock, work: Workspace, packages: Sequence[LockedPackage]
) -> None:
    """Build the wheels among packages that neither the cache nor the project nor find-links have.

    Args:
        inputs: of the target.
        lock: its lock.
        work: settings and cache.
        packages: those of the lock whose archives are needed.

    Raises:
        WheelError: a wheel cannot be built, or another one than the locked came out.
        FetchError: a source is not available.
    """
    for package in packages:
        if package.source is None or work.store.get(package.key) is not None:
            continue
        with contextlib.suppress(FetchError):
            fetch_for(inputs, [package], work.quiet())
            continue
        from .builder import ImageWheelBuilder  # slow, and nearly always not needed

        builder = ImageWheelBuilder(inputs.on_base(glibc_of(lock)), work, lock.base)
        work.reporter.note(
            f"{package.filename} is not in {inputs.recipe.root / WHEELS_FOLDER}: "
            "building it from its source"
        )
        try:
            builder.rebuild(package, lock)
        except FetchError as e:
            copy = f"copy {WHEELS_FOLDER}/{package.filename} from the machine that locked"
            raise type(e)(e.message, f"{copy}; or {e.hint}" if e.hint else copy) from None
