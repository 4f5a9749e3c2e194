"""Recognises the format of a foreign lock file."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.pylock import is_valid_pylock_path

from builder.lock.formats import explicit, pylock, uvlock
from builder.lock.formats.common import read_text
from builder.lock.formats.foreign import PIP_ONLY, Format

_PIN = re.compile(r"^[A-Za-z0-9][\w.-]*\s*(\[[\w,. -]+\])?\s*(===?\s*[^\s;]+|@\s*\S+)", re.MULTILINE)
#: Formats that are not read, and the command that writes one that is.
_EXPORTS = {
    "poetry.lock": "poetry export -f requirements.txt -o requirements.txt (with poetry-plugin-export)",
    "pdm.lock": "pdm export -f pylock -o pylock.toml",
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
}


def foreign_format(path: Path, text: str) -> Format | None:
    """The format of a lock file of another tool, from its name and content; None if it is none of them."""
    if path.name == "uv.lock":
        return "uv"
    if path.name == "pixi.lock":
        return "pixi"
    if is_valid_pylock_path(path):
        return "pylock"
    if explicit.MARK.search(text):
        return "explicit"
    if re.search(r"^lock-version\s*=", text, re.MULTILINE) and re.search("^created-by", text, re.MULTILINE):
        return "pylock"
    if re.search(r"^requires-python\s*=", text, re.MULTILINE) and "[[package]]" in text:
        return "uv"
    if re.search(r"^version:\s*\d", text, re.MULTILINE):
        if re.search(r"^environments:", text, re.MULTILINE):
            return "pixi"
        if re.search(r"^package:", text, re.MULTILINE) and re.search(r"^metadata:", text, re.MULTILINE):
            return "conda-lock"
    return "requirements" if path.suffix in (".txt", ".in", ".pip") and _PIN.search(text) else None


def export_command(path: Path) -> str:
    """The command that turns a lock of poetry, pdm or pipenv into a format that builder reads; else empty."""
    return _EXPORTS.get(path.name, "")


def foreign_python(path: Path) -> str | None:
    """The Pythons that a foreign lock is for, as a specifier (``>=3.11``, or empty: any).

    None if the lock contains its Python (formats with conda packages).

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    found = foreign_format(path, read_text(path))
    if found not in PIP_ONLY:
        return None
    if found == "uv":
        return str(uvlock.parsed(path).get("requires-python") or "")
    if found == "pylock":
        return str(pylock.parsed(path).requires_python or "")
    return ""
