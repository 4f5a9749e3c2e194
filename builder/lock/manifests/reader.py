"""Collects the entries of a file of another tool: conda specs, and lines of a pip section."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.core.model import MAIN
from builder.formats.net.pipconfig import PYPI
from builder.lock.pipsection import PipSection, plain_value
from builder.lock.spec import Environment, IndexPin, Spec

#: The channel of files that name none.
CHANNEL = "conda-forge"
_PYTHON_VERSION = re.compile(r"(?:cpython-|python-)?(3\.\d+)(\.\d+)?")
#: Characters of ``.python-version`` that are read.
_PYTHON_VERSION_CHARS = 100


class ManifestReader:
    """Collects the entries of a file."""

    def __init__(self, path: Path, section: PipSection) -> None:
        self.path = path
        self.channels: list[str] = []
        self._conda: dict[str, Spec] = {}
        self._section = section
        self.pins: list[IndexPin] = []
        self.limits: list[Spec] = []
        self.virtual_packages: dict[str, str] = {}
        self.exclude_newer = ""
        self.uv: dict[str, Any] = {}

    def conda(self, text: str, name: str, where: str) -> None:
        text = plain_value(text, where)
        self._conda.setdefault(text, Spec(text, name.lower(), where))

    def pip(self, text: str, where: str) -> None:
        self._section.read(text, where)

    def own_code(self, groups: Sequence[str], where: str) -> None:
        """Add the project itself with extras: pip's ``.[EXTRA]``."""
        extras = ",".join(group for group in groups if group != MAIN)
        self.pip(f".[{extras}]" if extras else ".", where)

    def index(self, url: Any) -> None:
        """Add a package index without its last slash. PyPI needs no option."""
        text = str(url or "").rstrip("/")
        if text not in ("", PYPI):
            self._section.extra_indexes.append(plain_value(text, f"{self.path}: index"))

    def pin(self, name: str, url: Any, where: str, marker: str = "") -> None:
        """Add an index that alone may have a package."""
        text = plain_value(str(url).rstrip("/"), where)
        self.pins.append(IndexPin(canonicalize_name(name), text, marker))

    def python(self, specifier: str, where: str) -> None:
        """Add the version of Python: ``requires-python``, and that of ``.python-version``."""
        self.conda(f"python {conda_version(specifier)}".strip(), "python", where)
        version = pinned_python(self.path.parent)
        if version:
            self.conda(f"python={version}", "python", f"{self.path.parent / '.python-version'}:1")

    def environment(self) -> Environment:
        if not any(spec.name == "python" for spec in self._conda.values()):
            self.python("", str(self.path))
        if not any(spec.name == "pip" for spec in self._conda.values()):
            self.conda("pip", "pip", str(self.path))
        named = [channel for channel in self.channels if channel != "nodefaults"]
        channels = [plain_value(channel, f"{self.path}: channels") for channel in named]
        found = self._section.environment(channels or [CHANNEL], tuple(self._conda.values()))
        return replace(
            found,
            pins=tuple(dict.fromkeys(self.pins)),
            limits=tuple(self.limits),
            virtual_packages=tuple(self.virtual_packages.items()),
            exclude_newer=self.exclude_newer,
            uv=self.uv,
        )


def conda_version(specifier: str) -> str:
    """Return a version specifier of PEP 440 as conda writes it; empty accepts any."""
    parts = specifier.replace(" ", "").replace("===", "==").split(",")
    return ",".join(
        part.removeprefix("==") if part.endswith(".*") else part
        for part in parts
        if part.strip("*")
    )


def pinned_python(folder: Path) -> str:
    """Return the version in ``.python-version`` of a folder (``3.11``); empty if there is none."""
    path = folder / ".python-version"
    if not path.is_file():
        return ""
    with path.open(errors="replace") as file:
        line = file.read(_PYTHON_VERSION_CHARS).strip()
    match = _PYTHON_VERSION.fullmatch(line)
    return match[1] + (match[2] or "") if match else ""


def source_line(requirement: Requirement, source: Mapping[str, Any]) -> str:
    """Return the line of a pip section for an entry of ``[tool.uv.sources]``.

    Empty for an entry that names an index only.
    """
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = source.get("marker") or requirement.marker
    tail = f" ; {marker}" if marker else ""
    if url := _git_url(source) if source.get("git") else source.get("url"):
        return f"{requirement.name}{extras} @ {url}{tail}"
    if source.get("path"):
        path = str(source["path"])
        local = path if path.startswith(("/", ".")) else f"./{path}"
        return f"-e {local}{extras}" if source.get("editable") else f"{local}{extras}"
    return ""


def _git_url(source: Mapping[str, Any]) -> str:
    """Return the URL of a repository, with revision and folder, as pip has it."""
    revision = source.get("rev") or source.get("tag") or source.get("branch")
    at = f"@{revision}" if revision else ""
    folder = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
    return f"git+{source['git']}{at}{folder}"
