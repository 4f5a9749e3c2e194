"""Which modules an image brings compiled: the recipe's ``bytecode``, and the list in the lock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from builder.config.recipe import Recipe
from builder.errors import LockError
from builder.lock.modules import MODULES, is_module_path, listed_modules, modules_text
from builder.model import Lock


def wanted_modules(recipe: Recipe, lock: Lock) -> frozenset[str] | None:
    """The modules to compile, by their paths in the image, relative to its root; None for all.

    The list may be older than the lock: it can name files that the packages no longer have.

    Raises:
        LockError: the recipe says ``bytecode: imported``, and the lock has no list, or a damaged one.
    """
    if recipe.bytecode == "all":
        return None
    folder = python_folder(recipe, lock)
    if recipe.bytecode == "none" or not folder:
        return frozenset()
    listed = listed_modules(lock)
    if listed is None:
        hint = f"builder lock {recipe.name} --imports"
        if recipe.uses_lock_unchanged:
            hint = "write 'bytecode: all', or remove 'lock:' from the recipe to let builder lock"
        raise LockError(
            f"{recipe.source}: bytecode: imported, and the lock does not list the imported modules", hint
        )
    return frozenset(folder + path for path in listed)


def python_folder(recipe: Recipe, lock: Lock) -> str:
    """``opt/conda/lib/python3.11/``: where the locked Python has its modules; empty without Python."""
    packages = lock.for_platform(recipe.platform)
    python = next((p for p in packages if p.manager == "conda" and p.name == "python"), None)
    version = re.match(r"(\d+)\.(\d+)", python.version) if python is not None else None
    if python is None or version is None:
        return ""
    free_threaded = re.search(rf"_cp{version[1]}{version[2]}t$", python.build)
    return f"{recipe.conda.prefix.strip('/')}/lib/python{version[0]}{'t' if free_threaded else ''}/"


def with_modules(recipe: Recipe, lock: Lock, files: Iterable[str]) -> Lock:
    """The lock with the list of these files. Those that are no modules of its Python are left out.

    Args:
        recipe: the target.
        lock: its lock.
        files: absolute paths in the image, as its Python reported them.

    Raises:
        LockError: none of them is a module of the lock's Python.
    """
    folder = "/" + (python_folder(recipe, lock) or "?")
    below = [path.removeprefix(folder) for path in files if path.startswith(folder)]
    paths = [path for path in below if is_module_path(path)]
    if not paths:
        raise LockError(
            f"target {recipe.name}: its imports read no module below {folder}",
            "write 'bytecode: all' or 'bytecode: none' into the recipe",
        )
    return replace(lock, custom={**lock.custom, MODULES: modules_text(paths)})
