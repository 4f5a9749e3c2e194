"""The built wheels of a lock: their folder in the project, and building those that no place has."""

from __future__ import annotations

from pathlib import Path

from builder.config.inside import own_path
from builder.config.recipe import Recipe
from builder.errors import FetchError
from builder.model import Lock, LockedPackage
from builder.progress import Reporter
from builder.settings import Settings
from builder.store.blobs import Store

#: The folder of a project with the wheels that were built for it. Whoever has it need not build them.
FOLDER = "wheels"


def built_packages(lock: Lock) -> list[LockedPackage]:
    """The packages of a lock whose wheels builder built."""
    return [package for package in lock.packages if package.source is not None]


def place_wheels(lock: Lock, root: Path, store: Store) -> list[Path]:
    """Copies the built wheels of a lock into the project; returns their paths.

    Two targets may need different wheels of one name (other Python packages or base): the second one is in a
    folder that is named after its digest.

    Raises:
        SpaceError: the disk is full.
    """
    placed = []
    for package in built_packages(lock):
        source = store.get(package.key)
        if source is None:  # it came from the project
            continue
        for target in wheel_places(root, package):
            if not target.exists() or store.verify(target, package.key):
                store.place(source, target, package.key)
                placed.append(target)
                break
    return placed


def wheel_places(root: Path, package: LockedPackage) -> tuple[Path, Path]:
    """Where a built wheel may be in the project."""
    assert package.sha256 is not None
    folder = own_path(root, FOLDER)
    return folder / package.filename, folder / package.sha256[:12] / package.filename


def build_missing_wheels(
    recipe: Recipe, lock: Lock, settings: Settings, store: Store, reporter: Reporter
) -> None:
    """Builds the wheels of a lock that neither the cache nor the project nor find-links have.

    Raises:
        WheelError: a wheel cannot be built, or another one than the locked came out.
        FetchError: a source is not available.
    """
    platform = lock.for_platform(recipe.platform)
    unbuilt = [package for package in platform if package.source is None]
    for package in platform:
        if package.source is None or _is_here(package, recipe, settings, store):
            continue
        from builder.wheels.builder import ImageWheelBuilder  # slow, and nearly always not needed

        builder = ImageWheelBuilder(recipe, settings, store, reporter, lock.base)
        reporter.note(f"{package.filename} is not in {recipe.root / FOLDER}: building it from its source")
        try:
            builder.rebuild(package, unbuilt)
        except FetchError as e:
            copy = f"copy {FOLDER}/{package.filename} from the machine that locked"
            raise type(e)(e.message, f"{copy}; or {e.hint}" if e.hint else copy) from None


def _is_here(package: LockedPackage, recipe: Recipe, settings: Settings, store: Store) -> bool:
    if store.get(package.key) is not None:
        return True
    from builder.fetch.packages import fetch_packages
    from builder.lock.environment import find_links

    try:
        fetch_packages([package], settings, store, find_links=find_links(recipe))
    except FetchError:
        return False
    return True
