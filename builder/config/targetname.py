"""Hints for the name of a target that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.config.merge import near_hint
from builder.config.yamlfile import load_yaml
from builder.errors import ConfigError


def target_hint(name: str, files: Mapping[str, Path]) -> str:
    """Returns the hint for an unknown target.

    Args:
        name: what the user typed: perhaps the file of a recipe or of an environment.
        files: the targets and their recipes.
    """
    stem = Path(name).stem
    if name != stem and stem in files:
        return f"a target is named without folder and ending: write {stem}"
    if name.endswith((".yml", ".yaml")):
        users = [target for target, path in files.items() if _environment_of(path) == Path(name).name]
        if users:
            return f"this is the environment file of {' and '.join(users)}: write {users[0]}"
        if Path(name).exists():
            return f"builder init makes a target from an environment file; known targets: {_listed(files)}"
    return near_hint(stem, list(files)) or f"known targets: {_listed(files)}"


def _environment_of(recipe: Path) -> str:
    """The file name of a recipe's environment; empty if the recipe has none, or is wrong."""
    try:
        return Path(str(load_yaml(recipe).data.get("environment", ""))).name
    except ConfigError:
        return ""


def _listed(files: Mapping[str, Path]) -> str:
    return ", ".join(files) or "none: builder init writes one"
