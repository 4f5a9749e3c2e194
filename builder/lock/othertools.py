"""Files of other tools: their formats, and the hint for one that a recipe names in a wrong key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: The formats of locks, by the name of the tool or standard that they come from.
Format = Literal["pixi", "pylock", "uv", "requirements", "conda-lock", "explicit"]
#: Their descriptions for messages: "FILE is ...".
TOOLS: dict[Format, str] = {
    "pixi": "a lock file of pixi",
    "pylock": "a pylock.toml (PEP 751)",
    "uv": "a lock file of uv",
    "requirements": "a list of pip requirements",
    "conda-lock": "a lock file of conda-lock",
    "explicit": "an explicit list of conda packages (@EXPLICIT)",
}
#: Locks that builder does not read, the tool, and the command that writes one that it reads.
_EXPORTS = {
    "poetry.lock": ("poetry", "poetry export -f requirements.txt -o requirements.txt"),
    "pdm.lock": ("pdm", "pdm export -f pylock -o pylock.toml"),
    "Pipfile.lock": ("pipenv", "pipenv requirements --hash > requirements.txt"),
}
#: Names of files of PEP 751.
PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
_LOCKS: dict[str, Format] = {"uv.lock": "uv", "pixi.lock": "pixi", "conda-lock.yml": "conda-lock"}
#: Lines that a lock of each format has, as patterns: one search each, so that no text takes long.
_CONTENT: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("explicit", (r"^@EXPLICIT\s*$",)),
    ("pylock", (r"^created-by", r"^lock-version\s*=")),
    ("uv", (r"^\[\[package\]\]", r"^requires-python\s*=")),
    ("pixi", (r"^environments:", r"^version:\s*\d")),
    ("conda-lock", (r"^package:", r"^metadata:", r"^version:\s*\d")),
)
_REQUIREMENTS = (".txt", ".in", ".pip")
_PIN = re.compile(r"(?m)^[A-Za-z0-9][\w.-]*\s*(\[[\w,. -]+\])?\s*(===?\s*[^\s;]+|@\s*\S+)")


@dataclass(frozen=True, slots=True)
class OtherFile:
    """The kind of a file of another tool, and the way to its content."""

    what: str
    """Continues "FILE is"."""
    hint: str
    """The key of the recipe for such a file, or the command that exports it."""


def lock_format(path: Path, text: str) -> Format | None:
    """Return the format of a lock file, from its name and content; None if it is none of them."""
    if path.name in _LOCKS:
        return _LOCKS[path.name]
    if PYLOCK.fullmatch(path.name):
        return "pylock"
    for found, patterns in _CONTENT:
        if all(re.search(pattern, text, re.MULTILINE) for pattern in patterns):
            return found
    return "requirements" if path.suffix in _REQUIREMENTS and _PIN.search(text) else None


def other_file(path: Path, text: str) -> OtherFile | None:
    """Return the kind of a file that a recipe names in a wrong key; None if it is not known."""
    name = path.name
    if name in _EXPORTS:
        hint = f"export it: {export_command(path)}; then name that file: lock: FILE"
        return OtherFile(f"the lock file of {_EXPORTS[name][0]}, which builder does not read", hint)
    as_environment = f"name it as the environment, environment: {name}"
    as_environment += ", remove 'lock:', and run builder lock"
    if name in ("pyproject.toml", "pixi.toml"):
        return OtherFile("a project file (TOML), not YAML", as_environment)
    if path.suffix in _REQUIREMENTS and "@EXPLICIT" not in text:
        return OtherFile(TOOLS["requirements"], as_environment)
    if found := lock_format(path, text):
        hint = f"name it as the lock in the recipe: lock: {name}; then builder lock imports it"
        return OtherFile(TOOLS[found], hint)
    if re.search(r"(?m)^build_dependencies:", text):
        hint = "name the file beside it: environment: requirements.txt"
        return OtherFile("mlflow's python_env.yaml", hint)
    if re.search(r"(?m)^dependencies:", text):
        return OtherFile("an environment file", as_environment)
    return None


def relock_command(path: Path) -> str:
    """Return what to do after a change of the requirements that a lock was made from."""
    commands = {"uv.lock": "uv lock", "pixi.lock": "pixi lock"}
    return commands.get(path.name, f"update {path.name} with the tool that wrote it")


def export_command(path: Path) -> str:
    """Return the command that exports a lock of poetry, pdm or pipenv; empty for other files."""
    return _EXPORTS[path.name][1] if path.name in _EXPORTS else ""
