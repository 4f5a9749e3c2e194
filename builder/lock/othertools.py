"""Recognises files of other tools that are given as an environment file or as a lock file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OtherFile:
    """What a file is, and how builder gets at its content."""

    what: str
    """Continues "FILE is"."""
    as_environment: str
    """The hint when it is given as an environment file."""
    as_lock: str
    """The hint when it is given as a lock file."""


_INIT = "builder init reads it and writes an environment file"
_NO_LOCK = "remove 'lock:' from the recipe, and builder makes its own lock: builder lock"
_PIP = "write an environment file with the section '- pip: [-r {name}]' below dependencies:"
#: For a file that is a lock, but is given as the environment file, and for one that builder imports.
_AS_LOCK = "name it as the lock in the recipe: lock: {name}"
_IMPORT = f"{_AS_LOCK}; then builder lock imports it"

_REQUIREMENTS = OtherFile("a list of pip requirements", f"{_INIT}; or {_PIP}", _NO_LOCK)
_PYPROJECT = OtherFile("the settings of a Python project (TOML), not YAML", _INIT, _NO_LOCK)
_PIXI = OtherFile("a pixi project (TOML), not YAML", _INIT, _NO_LOCK)
_TOML = OtherFile(
    "TOML, not YAML", "name a conda environment file: channels: and dependencies: with lists", _NO_LOCK
)
_UV_LOCK = OtherFile("the lock file of uv", _AS_LOCK, _IMPORT)
_PIXI_LOCK = OtherFile("the lock file of pixi", _AS_LOCK, _IMPORT)
_PYLOCK = OtherFile("a pylock.toml (PEP 751)", _AS_LOCK, _IMPORT)
_POETRY = "export it: poetry export -f requirements.txt -o requirements.txt; then lock: requirements.txt"
_PDM = "export it: pdm export -f pylock -o pylock.toml; then lock: pylock.toml"
_PIPENV = "export it: pipenv requirements --hash > requirements.txt; then lock: requirements.txt"
_POETRY_LOCK = OtherFile("the lock file of poetry, which builder does not read", _POETRY, _POETRY)
_PDM_LOCK = OtherFile("the lock file of pdm, which builder does not read", _PDM, _PDM)
_PIPENV_LOCK = OtherFile("the lock file of pipenv, which builder does not read", _PIPENV, _PIPENV)
_CONDA_LOCK = OtherFile(
    "a lock file of conda-lock",
    "name it as the lock, lock: {name}, and the file that it was made from as the environment",
    "",
)
_EXPLICIT = OtherFile(
    "an explicit list of conda packages (@EXPLICIT)",
    _AS_LOCK,
    _IMPORT,
)
_ENVIRONMENT = OtherFile(
    "an environment file",
    "",
    "name it as the environment, environment: {name}, remove 'lock:', and run builder lock",
)
_DOCKERFILE = OtherFile(
    "a Dockerfile",
    "write its FROM image into the recipe, base: docker://HOST/REPOSITORY:TAG, and its packages into a conda "
    "environment file: channels: and dependencies: with lists",
    _NO_LOCK,
)
_BY_NAME = {
    "pyproject.toml": _PYPROJECT,
    "pixi.toml": _PIXI,
    "uv.lock": _UV_LOCK,
    "pixi.lock": _PIXI_LOCK,
    "pylock.toml": _PYLOCK,
    "poetry.lock": _POETRY_LOCK,
    "pdm.lock": _PDM_LOCK,
    "Pipfile": _TOML,
    "Pipfile.lock": _PIPENV_LOCK,
}
_TOML_TABLE = re.compile(r"^\[\[?[\w.\"'-]+\]\]?\s*(#.*)?$", re.MULTILINE)
_REQUIREMENT = re.compile(r"^(-r |--?[a-z][a-z-]*[ =]|[A-Za-z][\w.-]*(\[[\w,-]+\])?\s*([=<>~!]=|[<>@;#]|$))")


def other_file(path: Path, text: str) -> OtherFile | None:
    """What a file is that is not what it should be; None if that is not known."""
    if path.name in _BY_NAME:
        return _BY_NAME[path.name]
    if re.search(r"^@EXPLICIT\s*$", text, re.MULTILINE):
        return _EXPLICIT
    if re.search(r"^package:", text, re.MULTILINE) and re.search(r"^metadata:", text, re.MULTILINE):
        return _CONDA_LOCK
    if re.search(r"^dependencies:", text, re.MULTILINE):
        return _ENVIRONMENT
    if path.suffix == ".toml" or (_TOML_TABLE.search(text) and " = " in text):
        return _TOML
    if re.search(r"^FROM \S+", text, re.MULTILINE) and re.search(r"^(RUN|COPY|CMD|ENV) ", text, re.MULTILINE):
        return _DOCKERFILE
    lines = [line.strip() for line in text.splitlines()[:100]]
    lines = [line for line in lines if line and not line.startswith("#")]
    if lines and all(_REQUIREMENT.match(line) for line in lines):
        return _REQUIREMENTS
    return None
