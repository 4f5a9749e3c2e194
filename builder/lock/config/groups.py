"""The publish groups that the recipes of a project declare."""

from __future__ import annotations

import re
from pathlib import Path

from .recipe import recipe_files
from .yamlfile import load_yaml

#: A name that can be an option of the command line.
_GROUP = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)


def recipe_groups(root: Path) -> set[str]:
    """Return the groups that the recipes in ``root/recipes`` name with ``group``.

    Raises:
        ConfigError: a recipe is not valid YAML.
    """
    names: set[str] = set()
    for path in recipe_files(root).values():
        found = load_yaml(path).data.get("group")
        found = [found] if isinstance(found, str) else found
        if isinstance(found, list):  # anything else is an error when the recipe is loaded
            names.update(g for g in found if isinstance(g, str) and _GROUP.fullmatch(g))
    return names
