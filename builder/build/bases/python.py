"""The Python of a base image, found in the files of its layers. Nothing of the base is run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from builder.build.fetch.venv import BasePython
from builder.core.errors import ConfigError, ImageError
from builder.core.model import LockedBase
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.formats.layers.conflicts import walk
from builder.formats.oci.config import DEFAULT_PATH, config_environment
from builder.formats.trees.member import Content, Kind
from builder.formats.trees.merge import Merge
from builder.formats.trees.sources import Source
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of

from .image import BaseImage
from .resolve import open_recipe_base
from .sif import base_sources

#: Part of the key of records. Increase it when another Python is found in the same base.
_FORMAT = 2
#: Where Python is looked for after the folders of the base's PATH.
_FOLDERS = ("/usr/local/bin", "/opt/conda/bin", "/opt/venv/bin", "/usr/bin")
_INTERPRETER = re.compile(r"python(3\.\d+)(t?)")
#: Files that are read: they tell the version, and what a virtual environment of the base is made from.
_READ = re.compile(r"(.+/)?(pyvenv\.cfg|include/python3\.\d+t?/patchlevel\.h)|var/lib/dpkg/status")
#: Bytes of such a file. That of dpkg has about 4 MB on a large system.
_MAX_SIZE = 32 << 20


def base_python(locked: LockedBase, recipe: Recipe, work: Workspace) -> BasePython:
    """Return the Python of the recipe's base, for the recipe's ``python``.

    The files of a large base take some time; what was found is recorded.

    Raises:
        ImageError: the base has no Python 3, or is damaged.
        ConfigError: the recipe's prefix would hide it.
        RegistryError, SpaceError: the base is not available.
    """
    name = f"base-python-{_FORMAT}-{locked.digest.replace(':', '-')}.json"

    def find() -> BasePython:
        base = open_recipe_base(locked, recipe, work)
        with working(work.reporter, "looking for the Python of the base"):
            found = find_python(base, work.store)
        if found is None:
            raise ImageError(
                f"{place_of(recipe.source, 'python')}: the base {recipe.base} has no Python 3 in its PATH",
                "add it to base_packages: [python3] of a debian: base, name a base that has it, or remove "
                "'python:' to take Python from a conda channel",
            )
        return found

    python = Record(work.store.folders.index / name, BasePython).get(find)
    _check_prefix(python, recipe)
    if recipe.python == "base-with-packages":
        return python
    return replace(python, sees_packages=False, packages="")


def _check_prefix(python: BasePython, recipe: Recipe) -> None:
    prefix = recipe.conda.prefix
    for path in (python.interpreter, python.packages):
        if path.startswith(f"{prefix}/"):
            raise ConfigError(
                f"{recipe.source}: conda.prefix: {prefix} hides {path} of the base",
                "name another folder: conda: {prefix: /opt/env}",
            )


def find_python(base: BaseImage, store: Store) -> BasePython | None:
    """Return the first Python 3 in a base's PATH, with its packages; None if there is none.

    Raises:
        ImageError: the base is damaged.
    """
    path = config_environment(base.config).get("PATH", DEFAULT_PATH).split(":")
    files = _read_files(base_sources(base, store))
    for folder in dict.fromkeys((*path, *_FOLDERS)):
        for name in ("python3", "python"):
            found = _python_at(folder, name, files)
            if found is not None:
                return found
    return None


@dataclass
class _PythonFiles:
    """What is read of a base."""

    kinds: Mapping[str, Kind]
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def real(self, path: str) -> str:
        """Return a path with all symlinks followed; empty if there are too many."""
        try:
            places = list(walk(path, self.links.get, is_image=True))
        except RecursionError:
            return ""
        return places[-1] if places else ""


def _read_files(sources: Sequence[Source]) -> _PythonFiles:
    merge = Merge(sources)
    files = _PythonFiles(merge.kinds)
    for member, content in merge:
        if member.kind is Kind.SYMLINK:
            files.links[member.path] = member.target
        elif member.kind is Kind.FILE and member.size <= _MAX_SIZE and _READ.fullmatch(member.path):
            files.texts[member.path] = _text(content)
    return files


def _text(content: Content) -> str:
    return b"".join(bytes(part) for part in content).decode(errors="replace")


def _python_at(folder: str, name: str, files: _PythonFiles) -> BasePython | None:
    """Return the Python of a folder of the PATH."""
    real = files.real(f"{folder}/{name}")
    match = _INTERPRETER.fullmatch(posixpath.basename(real))
    if match is None or files.kinds.get(real) not in (Kind.FILE, Kind.HARDLINK):
        return None
    prefix = posixpath.dirname(posixpath.dirname(real))
    threading = match[2] or _threading(prefix, match[1], files)
    version = _version(prefix, match[1], threading, files)
    python = BasePython(f"/{real}", version, sees_packages=True, threading=threading)
    own = posixpath.dirname(files.real(folder))
    settings = files.texts.get(f"{own}/pyvenv.cfg")
    if settings is None:
        return python
    sees = re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", settings) is not None
    packages = f"/{own}/lib/{python.library}/site-packages"
    return replace(python, sees_packages=sees, packages=packages)


def _threading(prefix: str, minor: str, files: _PythonFiles) -> str:
    """Return ``t`` if all modules of this version below a prefix are for free-threaded Pythons.

    There ``python3.13`` is a hard link to ``python3.13t``.
    """
    own = rf"{re.escape(prefix)}/lib(?:64)?/python{re.escape(minor)}"
    module = re.compile(rf"{own}(?:(t)/.*|/lib-dynload/[^/]*\.cpython-\d+(t?)-[^/]*)")
    found = {match[1] or match[2] for match in map(module.fullmatch, files.kinds) if match}
    return "t" if found == {"t"} else ""


def _version(prefix: str, minor: str, threading: str, files: _PythonFiles) -> str:
    """Return the full version from a header, conda's record or dpkg's list; else ``3.11``."""
    header = files.texts.get(f"{prefix}/include/python{minor}{threading}/patchlevel.h", "")
    record = re.compile(
        rf"{re.escape(prefix)}/conda-meta/python-({re.escape(minor)}\.\d+)-[^/]+\.json"
    )
    ways: tuple[Callable[[], re.Match[str] | None], ...] = (
        lambda: re.search(r'(?m)^#define\s+PY_VERSION\s+"([\d.]+)', header),
        lambda: next(filter(None, map(record.fullmatch, files.kinds)), None),
        lambda: re.search(
            rf"(?ms)^Package: python{re.escape(minor)}(?:-minimal|-nogil)?$(?:(?!^$).)*?^Version: ([\d.]+)",
            files.texts.get("var/lib/dpkg/status", "") if prefix == "usr" else "",
        ),
    )
    for way in ways:
        found = way()
        if found is not None and found[1].startswith(f"{minor}."):
            return found[1]
    return minor
