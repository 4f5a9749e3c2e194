"""What a source needs for its build: the table ``[build-system]`` of its ``pyproject.toml`` (PEP
518).

Also how it makes its version from git, for backends that do.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.build.sources.scm import Scm
from builder.core.errors import WheelError
from builder.core.store.reading import open_ordinary
from builder.formats.trees.inside import PROJECT_FILES
from builder.lock.tomlfile import loads

#: What pip and uv use for a source without a ``[build-system]``.
_LEGACY = "setuptools.build_meta:__legacy__"
_LEGACY_TABLE = {"requires": ["setuptools>=40.8.0", "wheel"]}
#: What files that are damaged, or lack a name, raise.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, RecursionError, SyntaxError, MemoryError)
#: Bytes of a ``pyproject.toml`` that is read.
MAX_PYPROJECT = 1 << 20
#: What makes a version from git, as a ``pyproject.toml`` or ``setup.py`` names it: in the requirements of the
#: build, in a table of its settings, or as what another backend asks (scikit-build-core).
_SCM = re.compile(
    r"\b(setuptools[-_.]scm|hatch[-_.]vcs|vcs[-_.]versioning|use_scm_version)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Backend:
    """The build backend of a source."""

    name: str
    """``MODULE`` or ``MODULE:OBJECT``."""
    requires: tuple[str, ...]
    """Requirements of the backend and the build."""
    path: tuple[str, ...] = ()
    """Folders of the source that hold the backend, relative to the source."""


def read_backend(tree: Path, name: str) -> Backend:
    """Return the build backend of a source.

    Args:
        tree: the unpacked source.
        name: the package, for messages.

    Raises:
        WheelError: the folder holds no Python package, or its ``pyproject.toml`` is not valid.
    """
    pyproject = tree / "pyproject.toml"
    if not pyproject.is_file():
        if not (tree / "setup.py").is_file():
            hint = "name the folder of the package: #subdirectory=FOLDER"
            raise WheelError(f"{name}: its source has neither pyproject.toml nor setup.py", hint)
        return _backend(_LEGACY_TABLE)
    try:
        return _backend(loads(_text(pyproject)).get("build-system", _LEGACY_TABLE))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        is_missing = isinstance(e, KeyError)
        reason = "[build-system] has no requires" if is_missing else str(e).splitlines()[0]
        hint = "use another version of the package"
        raise WheelError(f"{name}: its pyproject.toml is not valid: {reason}", hint) from None


def _backend(table: dict[str, Any]) -> Backend:
    requires, path = table["requires"], table.get("backend-path", [])
    name = table.get("build-backend", _LEGACY)
    if not all(isinstance(value, str) for value in (*requires, *path, name)):
        raise ValueError("[build-system] holds something else than texts")
    if any(Path(folder).is_absolute() or ".." in Path(folder).parts for folder in path):
        raise ValueError("backend-path leads out of the source")
    for text in requires:
        check_requirement(text)
    return Backend(name, tuple(requires), tuple(path))


def check_requirement(text: str) -> None:
    """Raise ValueError if a source's requirement is invalid, or could read from this machine.

    uv reads it as a line of a file, in which variables are replaced by their values.
    """
    url = Requirement(text).url
    if "$" in text or any(ord(character) < 32 for character in text):
        raise ValueError(f"{text[:80]!r} has a variable or a control character")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ValueError(f"{text[:80]!r} is no address on the web")


def project_name(tree: Path) -> str | None:
    """Return the normalised name that a source declares as a text; None if there is none.

    Raises nothing: :func:`read_backend` reports damaged files.
    """
    for read in (_of_pyproject, _of_setup_cfg, _of_setup):
        with contextlib.suppress(*_DAMAGED, configparser.Error):
            return canonicalize_name(read(tree), validate=True)
    return None


def read_scm(tree: Path) -> Scm | None:
    """Return how a source makes its version from git; None if it does not.

    Raises nothing: :func:`read_backend` reports damaged files.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        files = (tree / name for name in PROJECT_FILES)
        pyproject, setup = (_text(file) if file.is_file() else "" for file in files)
        return _scm(loads(pyproject)) if _SCM.search(pyproject + setup) else None
    return None


def _scm(data: dict[str, Any]) -> Scm | None:
    if "project" in data and "version" not in data["project"].get("dynamic", []):
        return None
    tools = data.get("tool", {})
    hatch = tools.get("hatch", {}).get("version", {})
    own = tools.get("setuptools_scm") or tools.get("vcs-versioning")
    table = own or hatch.get("raw-options", {})
    fallback = hatch.get("fallback-version") or table.get("fallback_version") or "0.0"
    untagged = table.get("tag", {}).get("prefix", "") + fallback
    searches = bool(table.get("search_parent_directories"))
    return Scm(_describe_command(table), untagged, str(table.get("root", ".")), searches)


def _describe_command(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the command that a project's settings name, or that of the tools."""
    git = table.get("scm", {}).get("git", {})
    own = git.get("describe_command", table.get("git_describe_command"))
    if own is not None:
        return tuple(shlex.split(own) if isinstance(own, str) else map(str, own))
    tag = table.get("tag", {})
    glob = "*[0-9]*.*[0-9]*" if tag.get("strict") else "*[0-9]*"
    match = f"--match={tag.get('prefix', '')}{glob}"
    return ("git", "describe", "--dirty", "--tags", "--long", "--abbrev=10", match)


def _text(path: Path) -> str:
    with open_ordinary(path, links=True) as (file, info):
        if info.st_size > MAX_PYPROJECT:
            raise ValueError(f"has more than {MAX_PYPROJECT} bytes")
        return file.read().decode()


def _of_pyproject(tree: Path) -> str:
    data = loads(_text(tree / "pyproject.toml"))
    if "project" in data:
        return str(data["project"]["name"])
    return str(data["tool"]["poetry"]["name"])


def _of_setup_cfg(tree: Path) -> str:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(_text(tree / "setup.cfg"))
    return parser["metadata"]["name"]


def _of_setup(tree: Path) -> str:
    """Return the ``name`` of the call ``setup(...)``. The file is parsed, and not run."""
    nodes = ast.walk(ast.parse(_text(tree / "setup.py")))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    setups = (call for call in calls if ast.unparse(call.func).endswith("setup"))
    names = (k.value for call in setups for k in call.keywords if k.arg == "name")
    return str(ast.literal_eval(next(names, "")))
