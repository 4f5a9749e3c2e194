"""Files that extend others: recipes, and site files.

Mappings are merged key by key; every other value is replaced.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.core.errors import ConfigError

from .yamlfile import YamlFile, load_yaml


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings; where both have a value that is no mapping, that of ``above`` wins."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def load_chain(name: str, files: Mapping[str, Path], what: str) -> list[YamlFile]:
    """Read a file and everything that it extends.

    Args:
        name: the file's name in ``files``.
        files: all files that can be extended.
        what: the word for such a file in messages: ``target`` or ``site``.

    Returns:
        The files: the named one first, then what it extends.

    Raises:
        ConfigError: a file is not valid YAML, extends a file that does not exist, or extends
            itself.
    """
    chain = [load_yaml(files[name])]
    names = [name]
    while (parent := chain[-1].data.get("extends")) is not None:
        if not isinstance(parent, str) or parent not in files:
            problem = f"extends {reprlib.repr(parent)}, which does not exist"
        else:
            problem = "extends itself" if parent in names else ""
        if problem:
            known = [other for other in files if other not in names]
            hint = near_hint(str(parent), known) or f"known {what}s: {', '.join(known) or 'none'}"
            raise ConfigError(f"{chain[-1].where('extends')}: {what} {names[-1]} {problem}", hint)
        names.append(parent)
        chain.append(load_yaml(files[parent]))
    return chain


def near_hint(name: str, known: Sequence[str], cutoff: float = 0.5) -> str:
    """Return a hint that asks for the most similar names; empty if none is similar.

    Args:
        name: the name that the user wrote.
        known: the names that exist.
        cutoff: the least similarity, from 0 (any name) to 1 (equal).
    """
    near = difflib.get_close_matches(name, known, n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else ""


def choices(name: str, known: Sequence[str]) -> str:
    """Return a hint for a name that is not known: the most similar ones, and all (at most 20)."""
    listed = f"it has: {', '.join(known[:20]) or 'none'}{', ...' if len(known) > 20 else ''}"
    return f"{near_hint(name, known)} {listed}".strip()
