"""``uv.lock``. uv decides what a target installs, and the lock file says where its files are.

A lock of uv has several versions of a package for different markers, extras and groups that exclude
each other. uv's own command walks through it, without network; its pins are looked up in the lock::

    uv export --frozen --group dev     torch==2.7.1+cu128 ; sys_platform != 'darwin'  --hash=...
    uv.lock                            [[package]] torch 2.7.1+cu128, its wheels: URL and hash of each
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import canonicalize_name

from builder.config.merge import choices
from builder.errors import LockError
from builder.lock.formats.common import RESTORE, PackageMaker, glibc_of, read_toml
from builder.lock.formats.foreign import ForeignLock, Found
from builder.lock.formats.requirements import read_pins
from builder.lock.spec import SourceSpec, Spec
from builder.lock.uv import uv_program
from builder.lock.wheels import best_wheel, ranks_of, wheel_tags
from builder.model import MAIN, LockedPackage
from builder.redact import redact

_TIME_LIMIT_S = 60


def read_uv(
    path: Path,
    platform: str,
    python: str,
    groups: Sequence[str],
    virtual: Mapping[str, str],
    root: Path | None = None,
) -> ForeignLock:
    """Return the packages of a ``uv.lock`` for one target; the ``pyproject.toml`` must lie beside
    it.

    ``main`` stands for the project itself, if it has a build-system, and its dependencies. Any
    other group is a dependency group or an extra of the project; the default groups of uv are not
    taken unless they are named.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    data = read_toml(path)
    project = _project(path)
    named, extras = _groups(project)
    offered = sorted({MAIN, *named, *extras})
    for group in groups:
        if group not in offered:
            raise LockError(
                f"{path}: there is no group or extra {group!r}", choices(group, offered)
            )
    chosen = list(dict.fromkeys(groups)) or [MAIN]
    pins, _ = read_pins(path, _exported(path, chosen, named, extras), platform, python, root)
    files = _UvFiles(path, platform, data, wheel_tags(platform, glibc_of(virtual), python))
    return ForeignLock(
        "uv",
        path,
        tuple(map(files.find, pins)),
        left_out=tuple(name for name in offered if name not in chosen),
    )


def _project(path: Path) -> dict[str, Any]:
    """Return the ``pyproject.toml`` beside the lock."""
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
    """Return the dependency groups (with uv's older ``dev-dependencies``) and the extras of a
    project.
    """
    named = [str(name) for name in project.get("dependency-groups") or {}]
    settings = project.get("tool") or {}
    uv = settings.get("uv") if isinstance(settings, dict) else None
    if isinstance(uv, dict) and uv.get("dev-dependencies") and "dev" not in named:
        named.append("dev")
    optional = project.get("project", {}).get("optional-dependencies") or {}
    extras = [str(name) for name in optional] if isinstance(optional, dict) else []
    return named, extras


def _exported(
    path: Path, chosen: Sequence[str], named: Sequence[str], extras: Sequence[str]
) -> str:
    """Return the pins of the chosen groups, with their markers, as uv exports them."""
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
        raise LockError(
            f"{path}: uv did not read this lock within {_TIME_LIMIT_S} s", RESTORE
        ) from None
    if done.returncode:
        reason = re.sub(r"(?m)^\s*(error|cause):\s*", "", redact(done.stderr)).strip()
        raise LockError(
            f"{path}: uv cannot read this lock:\n{reason}", "check it with uv: uv export --frozen"
        )
    return done.stdout


class _UvFiles:
    """Finds the file of a pin in the lock."""

    def __init__(
        self, path: Path, platform: str, data: Mapping[str, Any], tags: Sequence[Tag]
    ) -> None:
        self._path = path
        self._maker = PackageMaker(path, platform)
        self._platform = platform
        self._ranks = ranks_of(tags)
        self._entries: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for entry in data.get("package", []):
            key = (canonicalize_name(str(entry.get("name"))), str(entry.get("version")))
            self._entries.setdefault(key, []).append(entry)

    def find(self, pin: Found) -> Found:
        """Return the best wheel of a pin; its sdist if no wheel fits; the pin itself if the lock
        has no hash.

        Raises:
            LockError: the lock has no file for the target.
        """
        if isinstance(pin, SourceSpec):
            return replace(pin, where=str(self._path))
        if isinstance(pin, LockedPackage) or " @ " in pin.text:
            return pin
        version = pin.text.removeprefix(pin.name).lstrip("=")
        entries = self._entries.get((pin.name, version), [])
        # Two indexes may have the same version: the hashes say which one uv means.
        entry = next((e for e in entries if not pin.hashes or set(pin.hashes) & _hashes(e)), None)
        if entry is None:
            raise self._maker.error(
                f"package {pin.text}: uv names it, but the lock does not have it"
            )
        wheel, sdist = best_wheel(_files(entry, "wheels"), self._ranks), entry.get("sdist")
        if wheel is not None:
            url, sha256 = _place(wheel), _sha256(wheel)
            if not sha256:
                return Spec(f"{pin.name} @ {url}", pin.name, str(self._path))
            needs = {
                str(item["name"]): "" for item in _files(entry, "dependencies") if "name" in item
            }
            return self._maker.make(
                "pip", pin.name, version, url, sha256=sha256, dependencies=needs
            )
        if isinstance(sdist, dict):
            return SourceSpec(
                "sdist", pin.name, _place(sdist), sha256=_sha256(sdist), where=str(self._path)
            )
        raise self._maker.error(
            f"{pin.name} {version}: no wheel for {self._platform} and this Python, and no sdist",
            "choose another Python or base (its glibc may be too old), or another version",
        )


def _place(file: Mapping[str, Any]) -> str:
    return str(file.get("url") or file.get("path") or "")


def _files(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = entry.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _hashes(entry: Mapping[str, Any]) -> frozenset[str]:
    files = [*_files(entry, "wheels"), *_files({"sdist": [entry.get("sdist")]}, "sdist")]
    return frozenset(str(item.get("hash")) for item in files)


def _sha256(item: Mapping[str, Any]) -> str:
    kind, _, digits = str(item.get("hash") or "").partition(":")
    return digits if kind == "sha256" else ""
