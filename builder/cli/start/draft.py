"""A draft: the few facts from which ``builder init`` makes the recipe of a new project."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from builder.lock.config.recipe import Recipe, recipe_from
from builder.lock.config.yamlfile import YamlFile

#: Folder of the project's own files in an image.
APP = "/app"
#: Names of scripts that people start.
_USUAL_SCRIPTS = ("train.py", "main.py", "app.py", "run.py", "__main__.py")


@dataclass(frozen=True)
class Draft:
    """The facts of a new recipe. Empty ones are not written: defaults and the site decide."""

    name: str
    environment: str
    """The environment file, relative to the project folder; may be empty with ``lock``."""
    lock: str = ""
    """A lock file of another tool, relative to the project folder."""
    groups: tuple[str, ...] = ()
    """Groups for the image; empty: the packages without a group."""
    site: str = ""
    base: str = ""
    platform: str = ""
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    """Those that the environment file declares."""
    python: str = ""
    """``base``: take Python from the base, and no conda packages."""
    base_packages: tuple[str, ...] = ()
    """OS packages to add to the base."""
    conda: Mapping[str, Any] = field(default_factory=dict)
    """The channels, where the environment file names none."""
    pip: Mapping[str, Any] = field(default_factory=dict)
    """The fallback to pip's own configuration, and compilers of the project's own package."""
    files: tuple[tuple[str, str], ...] = ()
    """Source, relative to the project folder, and target of each file or folder."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the image."""

    @property
    def script(self) -> str:
        """The Python file below :data:`APP` that the image runs: the only one or only usual name.

        Empty if there are several.
        """
        targets = [target.removeprefix(f"{APP}/") for _, target in self.files]
        scripts = [target for target in targets if target.endswith(".py")]
        usual = [name for name in scripts if name in _USUAL_SCRIPTS]
        for found in (scripts, usual):
            if len(found) == 1 and "/" not in found[0]:
                return found[0]
        return ""

    def data(self) -> dict[str, Any]:
        """Return the keys of the recipe, in the order in which they are written."""
        first = ("site", "base", "platform", "environment", "lock", "groups")
        names = dict.fromkeys((*first, *(one.name for one in fields(self)[1:])))
        keys: dict[str, Any] = {name: getattr(self, name) for name in names}
        keys["files"] = [{"source": source, "target": target} for source, target in self.files]
        source = dict(self.files).get("src")
        keys["env"] = {**dict(self.env), **({"PYTHONPATH": source} if source else {})}
        keys["workdir"] = APP if self.files else ""
        keys["cmd"] = ["python", self.script] if self.script else []
        return {key: value for key, value in keys.items() if value}

    def recipe(self, root: Path) -> Recipe:
        """Return the recipe of the draft.

        Args:
            root: the project folder.

        Raises:
            ConfigError: the site does not exist, or a value is wrong.
        """
        source = root / "recipes" / f"{self.name}.yaml"
        return recipe_from(self.name, [YamlFile(source, self.data())], source, root)


def target_name(text: str) -> str:
    """Return a valid name of a target that is like ``text``: ``My Model`` becomes ``my-model``."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")
    return name or "image"
