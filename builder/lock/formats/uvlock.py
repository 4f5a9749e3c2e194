"""``uv.lock``. uv decides what a target installs, and the lock file says where its files are.

A lock of uv has several versions of a package for different markers, extras and groups that exclude each
other. uv's own command walks through it, without network; its pins are looked up in the lock::

    uv export --frozen --group dev     torch==2.7.1+cu128 ; sys_platform != 'darwin'  --hash=...
    uv.lock                            [[package]] torch 2.7.1+cu128, its wheels: URL and hash of each
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from builder.errors import LockError
from builder.lock.formats.common import (
    RESTORE,
    PackageMaker,
    choices,
    glibc_of,
    read_toml,
)
from builder.lock.formats.foreign import ForeignLock, ForeignSource, PinnedRequirement
from builder.lock.formats.requirements import read_pins
from builder.lock.uv import uv_program
from builder.lock.wheels import rank_of, ranks_of, wheel_tags
from builder.model import MAIN, LockedPackage
from builder.redact import redact

#: The version of the format. uv counts compatible changes as ``revision``.
VERSION = 1
_TIME_LIMIT_S = 60


def read_uv(
    path: Path,
    platform: str,
    python: str,
    groups: Sequence[str],
    virtual: Mapping[str, str],
    root: Path | None = None,
) -> ForeignLock:
    """The packages of a ``uv.lock`` for one target; the ``pyproject.toml`` must lie beside it.

    ``main`` stands for the project itself, if it has a build-system, and its dependencies. Any other group is
    a dependency group or an extra of the project; the default groups of uv are not taken unless they are
    named.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    data = parsed(path)
    project = _project(path)
    named, extras = _groups(project)
    offered = sorted({MAIN, *named, *extras})
    for group in groups:
        if group not in offered:
            raise LockError(f"{path}: there is no group or extra {group!r}", choices(group, offered))
    chosen = list(dict.fromkeys(groups)) or [MAIN]
    needs = str(data.get("requires-python") or "")
    _check_python(path, needs, python)
    pins = read_pins(path, _exported(path, chosen, named, extras), platform, python, root)
    files = _Files(path, platform, data, wheel_tags(platform, glibc_of(virtual), python))
    packages, pinned = list(pins.packages), []
    sources = [files.named(source) for source in pins.sources]
    for pin in pins.pinned:
        found = files.find(pin)
        if isinstance(found, LockedPackage):
            packages.append(found)
        elif isinstance(found, ForeignSource):
            sources.append(found)
        else:
            pinned.append(found)
    return ForeignLock(
        "uv",
        path,
        packages=tuple(packages),
        sources=tuple(sources),
        pinned=tuple(pinned),
        groups=tuple(offered),
        left_out=tuple(name for name in offered if name not in chosen),
        needs_python=needs,
        notes=_notes(path, data, project, chosen),
    )


def _notes(
    path: Path, data: Mapping[str, Any], project: Mapping[str, Any], chosen: Sequence[str]
) -> tuple[str, ...]:
    """What a user has to know: the project itself is not installed where ``uv sync`` does not install it."""
    name = canonicalize_name(str(project.get("project", {}).get("name", "")))
    sources = [entry.get("source") for entry in data.get("package", []) if entry.get("name") == name]
    is_virtual = any(isinstance(source, dict) and source.get("virtual") == "." for source in sources)
    if MAIN in chosen and is_virtual:
        return (f"{path}: the project itself ({name}) has no build-system, so it is not installed",)
    return ()


def parsed(path: Path) -> dict[str, Any]:
    """The tables of a ``uv.lock``. Raises LockError if it is none, or of a newer version."""
    data = read_toml(path)
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise LockError(f"{path}: version is missing or not a number", RESTORE)
    if version != VERSION:
        raise LockError(
            f"{path}: version {version} of uv's lock format; builder reads version {VERSION}",
            "update builder, or lock with another uv",
        )
    packages = data.get("package", [])
    if not isinstance(packages, list) or not all(isinstance(item, dict) for item in packages):
        raise LockError(f"{path}: package is not a list of tables", RESTORE)
    return data


def _project(path: Path) -> dict[str, Any]:
    """The ``pyproject.toml`` beside the lock."""
    place = path.parent / "pyproject.toml"
    if not place.is_file():
        raise LockError(
            f"{path}: there is no pyproject.toml beside it, which names the groups of a uv.lock",
            "copy the project's pyproject.toml (and those of its workspace members) beside the lock, or "
            "export it where it is: uv export --format pylock.toml -o pylock.toml",
        )
    data = read_toml(place)
    for key in ("project", "dependency-groups"):
        if not isinstance(data.get(key, {}), dict):
            raise LockError(f"{place}: {key} is not a table", "correct the file")
    return data


def _groups(project: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The dependency groups (with uv's older ``dev-dependencies``) and the extras of a project."""
    named = [str(name) for name in project.get("dependency-groups") or {}]
    settings = project.get("tool") or {}
    uv = settings.get("uv") if isinstance(settings, dict) else None
    if isinstance(uv, dict) and uv.get("dev-dependencies") and "dev" not in named:
        named.append("dev")
    optional = project.get("project", {}).get("optional-dependencies") or {}
    extras = [str(name) for name in optional] if isinstance(optional, dict) else []
    return named, extras


def _check_python(path: Path, needs: str, python: str) -> None:
    try:
        fits = SpecifierSet(needs).contains(python, prereleases=True)
    except InvalidSpecifier:
        raise LockError(f"{path}: requires-python is not valid: {needs[:80]!r}", RESTORE) from None
    if not fits:
        raise LockError(
            f"{path}: the lock is for Python {needs}, and the target has {python}",
            f"choose a Python that fits: 'python{needs}' in the environment file",
        )


def _exported(path: Path, chosen: Sequence[str], named: Sequence[str], extras: Sequence[str]) -> str:
    """The pins of the chosen groups, with their markers, as uv exports them."""
    command = [uv_program(), "export", "--frozen", "--offline", "--no-config", "--quiet"]
    command += ["--no-default-groups", "--no-header", "--no-annotate"]
    if MAIN not in chosen:
        command.append("--no-emit-project")
    for group in chosen:
        if group in named:
            command += ["--group" if MAIN in chosen else "--only-group", group]
        if group in extras:
            command += ["--extra", group]
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    env["NO_COLOR"] = "1"
    try:
        done = subprocess.run(
            command,
            cwd=path.parent,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LockError(f"{path}: uv did not read this lock within {_TIME_LIMIT_S} s", RESTORE) from None
    if done.returncode:
        reason = re.sub(r"(?m)^\s*(error|cause):\s*", "", redact(done.stderr)).strip()
        raise LockError(
            f"{path}: uv cannot read this lock:\n{reason}", "check it with uv: uv export --frozen"
        )
    return done.stdout


class _Files:
    """Finds the file of a pin in the lock."""

    def __init__(self, path: Path, platform: str, data: Mapping[str, Any], tags: Sequence[Tag]) -> None:
        self._path = path
        self._maker = PackageMaker(path, platform)
        self._platform = platform
        self._ranks = ranks_of(tags)
        self._entries: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for entry in data.get("package", []):
            key = (canonicalize_name(str(entry.get("name"))), str(entry.get("version")))
            self._entries.setdefault(key, []).append(entry)
        self._folders = dict(_folders(data.get("package", [])))

    def find(self, pin: PinnedRequirement) -> LockedPackage | ForeignSource | PinnedRequirement:
        """The best wheel of a pin; its sdist if no wheel fits; the pin itself if the lock has no hash.

        Raises:
            LockError: the lock has no file for the target.
        """
        entries = self._entries.get((pin.name, pin.version), [])
        # Two indexes may have the same version: the hashes say which one uv means.
        entry = next((e for e in entries if not pin.sha256 or pin.sha256 & _hashes(e)), None)
        if entry is None:
            raise self._maker.error(f"package {pin.text}: uv names it, but the lock does not have it")
        wheel = self._best(_files(entry, "wheels"))
        if wheel is not None:
            url = str(wheel.get("url") or wheel.get("path") or "")
            sha256 = _sha256(wheel)
            if not sha256:
                text = f"{pin.name} @ {url}"
                return PinnedRequirement(pin.name, pin.version, frozenset(), text, str(self._path))
            return self._maker.make(
                "pip", pin.name, pin.version, url, sha256=sha256, dependencies=_dependencies(entry)
            )
        sdist = entry.get("sdist")
        if isinstance(sdist, dict):
            url = str(sdist.get("url") or sdist.get("path") or "")
            return ForeignSource(
                "sdist", pin.name, pin.version, url, sha256=_sha256(sdist), where=str(self._path)
            )
        raise self._maker.error(
            f"{pin.name} {pin.version}: no wheel for {self._platform} and this Python, and no sdist",
            "choose another Python or base (its glibc may be too old), or another version",
        )

    def named(self, source: ForeignSource) -> ForeignSource:
        """A local source with its name, which uv exports without."""
        name = source.name or self._folders.get(os.path.normpath(source.url), "")
        return replace(source, name=name, where=str(self._path))

    def _best(self, wheels: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        ranked = [(self._rank(wheel), position) for position, wheel in enumerate(wheels)]
        suitable = [(rank, position) for rank, position in ranked if rank is not None]
        return wheels[min(suitable)[1]] if suitable else None

    def _rank(self, wheel: Mapping[str, Any]) -> int | None:
        place = str(wheel.get("url") or wheel.get("path") or wheel.get("filename") or "")
        return rank_of(_file_name(place), self._ranks)


def _folders(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The folders and names of the local packages of a lock: members of its workspace, and paths."""
    for entry in entries:
        source = entry.get("source")
        for kind in ("editable", "directory", "virtual", "path"):
            if isinstance(source, dict) and isinstance(source.get(kind), str):
                yield os.path.normpath(source[kind]), canonicalize_name(str(entry.get("name")))


def _file_name(place: str) -> str:
    return unquote(place.partition("#")[0].partition("?")[0].rsplit("/", 1)[-1])


def _files(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = entry.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _hashes(entry: Mapping[str, Any]) -> frozenset[str]:
    files = [*_files(entry, "wheels"), *_files({"sdist": [entry.get("sdist")]}, "sdist")]
    return frozenset(_sha256(item) for item in files) - {""}


def _sha256(item: Mapping[str, Any]) -> str:
    kind, _, digits = str(item.get("hash") or "").partition(":")
    return digits if kind == "sha256" else ""


def _dependencies(entry: Mapping[str, Any]) -> dict[str, str]:
    return {str(item["name"]): "" for item in _files(entry, "dependencies") if "name" in item}
