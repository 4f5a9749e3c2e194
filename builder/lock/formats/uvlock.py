"""``uv.lock``. uv selects the packages of a target, and the lock file has their URLs and hashes.

A lock of uv has several versions of a package for different markers, extras and groups that exclude
each other. uv's own command walks through it, without network; its pins are looked up in the lock::

    uv export --frozen --group dev     torch==2.7.1+cu128 ; sys_platform != 'darwin'  --hash=...
    uv.lock                            [[package]] torch 2.7.1+cu128, its wheels: URLs and hashes
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.core.errors import LockError
from builder.core.limits import run_tool
from builder.core.markers import applies
from builder.core.model import MAIN, LockedPackage
from builder.core.redact import redact
from builder.lock.spec import SourceSpec, Spec
from builder.lock.tomlfile import items, strings, table
from builder.lock.uv import uv_program
from builder.lock.wheels import best_wheel

from .common import RESTORE, ForeignLock, Found, LockTarget, PackageMaker, check_groups, read_toml
from .requirements import read_pins

_TIME_LIMIT_S = 60


def requires_python(path: Path) -> str:
    """Return the specifier of a ``uv.lock``; empty: any Python. Raises as :func:`read`."""
    return str(read_toml(path).get("requires-python") or "")


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the packages of a ``uv.lock`` for one target. Its ``pyproject.toml`` is needed too.

    ``main`` stands for the project itself, if it has a build-system, and its dependencies. Any
    other group is a dependency group or an extra of the project; the default groups of uv are not
    taken unless they are named.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    data = read_toml(path)
    named, extras = _groups(_project(path))
    offered = sorted({MAIN, *named, *extras})
    chosen = list(dict.fromkeys(check_groups(path, target.recipe.groups, offered))) or [MAIN]
    pins = read_pins(path, _exported(path, chosen, named, extras), target)
    markers, platform = strings(data.get("supported-markers")), target.recipe.platform
    if markers and not any(applies(marker, platform, target.python) for marker in markers):
        hint = "change 'environments' of [tool.uv] in pyproject.toml, then: uv lock"
        raise LockError(f"{path}: supported-markers: only {' or '.join(markers)}", hint)
    return ForeignLock(
        tuple(map(_UvFiles(path, target, data).find, pins.found)),
        skipped=tuple(replace(spec, where=str(path)) for spec in pins.skipped),
        omitted=tuple(name for name in offered if name not in chosen),
    )


def _project(path: Path) -> dict[str, Any]:
    """Return the ``pyproject.toml`` in the folder of the lock."""
    project = path.parent / "pyproject.toml"
    if not project.is_file():
        raise LockError(
            f"{path}: there is no pyproject.toml beside it, which names the groups of a uv.lock",
            "copy the project's pyproject.toml (and those of its workspace members) beside the "
            "lock, or export it where it is: uv export --format pylock.toml -o pylock.toml",
        )
    return read_toml(project)


def _groups(project: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the dependency groups (also uv's ``dev-dependencies``) and extras of a project."""
    named = list(table(project, "dependency-groups"))
    if table(project, "tool", "uv").get("dev-dependencies") and "dev" not in named:
        named.append("dev")
    return named, list(table(project, "project", "optional-dependencies"))


def _exported(
    path: Path, chosen: Sequence[str], named: Sequence[str], extras: Sequence[str]
) -> str:
    """Return the pins of the chosen groups, with their markers, as uv exports them."""
    command = [uv_program(), "export", "--frozen", "--offline", "--no-config", "--quiet"]
    command += ["--no-default-groups", "--no-header", "--no-annotate"]
    of_project = {MAIN, *extras}.intersection(chosen)
    if of_project and MAIN not in chosen:
        command.append("--no-emit-project")
    for group in chosen:
        if group in named:
            command += ["--group" if of_project else "--only-group", group]
        if group in extras:
            command += ["--extra", group]
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    env["NO_COLOR"] = "1"
    late = LockError(f"{path}: uv did not read this lock within {_TIME_LIMIT_S} s", RESTORE)
    done = run_tool(command, path.parent, env, _TIME_LIMIT_S, late)
    if done.returncode:
        reason = re.sub(r"(?m)^\s*(error|cause):\s*", "", redact(done.stderr)).strip()
        problem = f"{path}: uv cannot read this lock:\n{reason}"
        raise LockError(problem, "check it with uv: uv export --frozen")
    return done.stdout


class _UvFiles:
    """Finds the file of a pin in the lock."""

    def __init__(self, path: Path, target: LockTarget, data: Mapping[str, Any]) -> None:
        self._where = str(path)
        self._maker = PackageMaker(path, target.recipe)
        self._platform = target.recipe.platform
        self._tags = target.tags
        self._entries: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for entry in data.get("package", []):
            key = (canonicalize_name(str(entry.get("name"))), str(entry.get("version")))
            self._entries.setdefault(key, []).append(entry)

    def find(self, pin: Found) -> Found:
        """Return the best wheel of a pin; its sdist if no wheel fits.

        A pin whose file has no hash in the lock is returned as it is, with its URL.

        Raises:
            LockError: the lock has no file for the target.
        """
        if isinstance(pin, SourceSpec):
            return replace(pin, where=self._where)
        if isinstance(pin, LockedPackage) or " @ " in pin.text:
            return pin
        version = pin.text.rpartition("=")[2]
        entry = self._entry(pin, version)
        wheel, sdist = best_wheel(_tables(entry.get("wheels")), self._tags), entry.get("sdist")
        if wheel is not None:
            url, sha256 = _url(wheel), _sha256(wheel)
            if not sha256:  # another hash, or none, as of a wheel of find-links
                folder = Path(self._where).absolute().parent
                place = folder / str(table(entry, "source").get("registry")) / url
                url = place.as_uri() if place.is_file() else url
                if "://" in url:
                    return replace(pin, text=f"{pin.name} @ {url}", where=self._where)
            needed = _tables(entry.get("dependencies"))
            needs = {str(item["name"]): "" for item in needed if "name" in item}
            return self._maker.make("pip", pin.name, version, url, {"sha256": sha256}, needs)
        if isinstance(sdist, dict):
            sha256 = _sha256(sdist)
            return SourceSpec("sdist", pin.name, _url(sdist), sha256=sha256, where=self._where)
        raise self._maker.error(
            f"{pin.name} {version}: no wheel for {self._platform} and this Python, and no sdist",
            "choose another Python or base (its glibc may be too old), or another version",
        )

    def _entry(self, pin: Spec, version: str) -> Mapping[str, Any]:
        """Return the entry with a pin's hashes: several indexes may have the version."""
        for entry in self._entries.get((pin.name, version), []):
            if not pin.hashes or set(pin.hashes) & _hashes(entry):
                return entry
        raise self._maker.error(f"package {pin.text}: uv names it, but the lock does not have it")


def _url(file: Mapping[str, Any]) -> str:
    return str(file.get("url") or file.get("path") or "")


def _tables(value: Any) -> list[dict[str, Any]]:
    return [item for item in items(value) if isinstance(item, dict)]


def _hashes(entry: Mapping[str, Any]) -> set[str]:
    files = [*_tables(entry.get("wheels")), table(entry.get("sdist"))]
    return {str(file.get("hash")) for file in files}


def _sha256(item: Mapping[str, Any]) -> str:
    kind, _, digits = str(item.get("hash") or "").partition(":")
    return digits if kind == "sha256" else ""
