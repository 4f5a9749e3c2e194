"""The Python modules of installed packages: ``scikit-learn`` installs ``sklearn``, ``pillow`` ``PIL``."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions

_MODULE_FILE = re.compile(r"(\w+)(\.[\w-]+)?\.(py|so)", re.ASCII)
_IDENTIFIER = re.compile(r"[^\W\d_]\w*")
#: Modules that packages install beside their own by accident.
_ACCIDENTS = ("test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks")


def modules_of(packages: list[str]) -> dict[str, list[str]]:
    """The modules that packages install, by the package's name; an empty list for one without modules.

    Args:
        packages: names of installed wheels, in any spelling; conda packages are often called alike.
    """
    installed = {_normal(found.metadata["Name"] or ""): found for found in distributions()}
    found = {package: installed.get(_normal(package)) for package in packages}
    return {name: sorted(set(_modules(one))) if one else [] for name, one in found.items()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _modules(distribution: Distribution) -> list[str]:
    """The public modules of a distribution; the one of its own name alone, if there is one."""
    found = [name for name in _from_files(distribution) or _from_top_level(distribution) if _is_public(name)]
    own = _normal(distribution.metadata["Name"] or "").replace("-", "_")
    same = [name for name in found if name.lower() == own]
    return same or found


def _is_public(name: str) -> bool:
    return bool(_IDENTIFIER.match(name)) and name not in _ACCIDENTS


def _from_files(distribution: Distribution) -> list[str]:
    """The shortest importable name in each folder; a folder without ``__init__.py`` is a namespace."""
    paths = [file.parts for file in distribution.files or [] if not file.parts[0].startswith(".")]
    found = set()
    for parts in paths:
        match = _MODULE_FILE.fullmatch(parts[0]) if len(parts) == 1 else None
        if match:
            found.add(match[1])
    folders = {parts[:-1] for parts in paths if len(parts) > 1 and parts[-1] == "__init__.py"}
    for folder in folders:
        is_below = any(folder[:depth] in folders for depth in range(1, len(folder)))
        if not is_below and all(part.isidentifier() for part in folder):
            found.add(".".join(folder))
    return sorted(found)


def _from_top_level(distribution: Distribution) -> list[str]:
    """The modules in ``top_level.txt``, for a distribution without a list of files (as Debian's)."""
    return (distribution.read_text("top_level.txt") or "").split()
