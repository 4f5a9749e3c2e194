"""The project's own code in an image: its wheel follows the files of its folder.

A lock names the wheel that was built from a folder, and a hash of the folder's files. If the files
differ, the wheel is built again, with the build requirements of the lock. If it is the same, byte
for byte, the lock is up to date: only what the build backend takes counts. Else the lock gets the
new wheel::

    edit of train.log     other files    the same wheel    up to date
    edit of model.py      other files    another wheel     the lock names it from now on

That happens without a solve. So a wheel whose requirements the locked packages do not fulfil is an
error.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.core.errors import LockError
from builder.core.model import Fetched, Lock, LockedPackage, LockedSource
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from builder.lock.file import replace_lock
from builder.lock.inputs import Inputs, glibc_of
from builder.lock.othertools import relock_command

from .locked import place_wheels, remove_unnamed


def own_packages(recipe: Recipe, lock: Lock) -> list[tuple[LockedPackage, LockedSource]]:
    """Return the packages whose wheels were built from folders of the project, with these."""
    built = ((p, p.source) for p in lock.for_platform(recipe.platform))
    return [(package, source) for package, source in built if source and source.kind == "local"]


def changed_folders(recipe: Recipe, lock: Lock, work: Workspace) -> list[LockedPackage]:
    """Return the packages whose files differ from those that their wheels were built from.

    Modules that git does not track are noted: they are in no wheel.

    Raises:
        LockError: a folder does not exist.
        ConfigError: a folder has too many files, or one that cannot be read.
    """
    found = []
    for package, source in own_packages(recipe, lock):
        from builder.formats.trees.project import project_tree  # pathspec is slow to import

        folder = recipe.root / source.url
        if not folder.is_dir():
            problem = f"{package.name}: the folder {folder} does not exist"
            raise LockError(problem, f"restore it, or builder lock {recipe.name}")
        tree = project_tree(folder, recipe.root)
        if note := tree.untracked_note:
            work.reporter.note(f"{package.name}: {note}")
        if tree.digest != source.tree:
            found.append(package)
    return found


def changed_wheels(
    inputs: Inputs, lock: Lock, work: Workspace
) -> list[tuple[LockedPackage, LockedPackage]]:
    """Return the locked packages whose wheels are others by now, and the new ones.

    Raises:
        WheelError, RunnerError, FetchError: a wheel cannot be built.
        LockError, ConfigError: see :func:`changed_folders`.
    """
    changed = changed_folders(inputs.recipe, lock, work)
    if not changed:
        return []
    # slow, and nearly always not needed
    from .builder import ImageWheelBuilder

    builder = ImageWheelBuilder(inputs.on_base(glibc_of(lock)), work, lock.base, reports=False)
    pairs = [(old, builder.current(old, lock)) for old in changed]
    return [(old, new) for old, new in pairs if new != old]


def update_wheels(inputs: Inputs, lock: Lock, path: Path, work: Workspace) -> Lock:
    """Return the lock with the wheels of the project's own code; write it if one has changed.

    Raises:
        LockError: a wheel requires what the lock does not have.
        WheelError, RunnerError, FetchError, ConfigError: see :func:`changed_wheels`.
    """
    pairs = changed_wheels(inputs, lock, work)
    if not pairs:
        return lock
    recipe = inputs.recipe
    new = {old.key: now for old, now in pairs}
    packages = tuple(new.get(p.key, p) if p.source else p for p in lock.packages)
    made = replace(lock, packages=packages)
    from builder.lock.sourcesolve import missing_requirements  # slow, and seldom needed

    platform = made.for_platform(recipe.platform)
    for wheel in new.values():
        file = Fetched(wheel, work.store.path(wheel.key), 0)
        if missing := missing_requirements(file, platform, recipe.platform, work.settings):
            problem = f"{path} is stale: {wheel.name} requires {', '.join(missing)} now"
            steps = [relock_command(recipe.imported_lock)] if recipe.imported_lock else []
            raise LockError(problem, ", then ".join([*steps, f"builder lock {recipe.name}"]))
    made = replace_lock(made, path)
    remove_unnamed([old for old, _ in pairs], recipe)
    place_wheels(made, recipe.root, work.store)
    names = ", ".join(package.filename for package in new.values())
    work.reporter.note(f"{recipe.name}: your code has changed: {path.name} has the new {names}")
    return made
