"""A draft: the few facts from which ``builder init`` makes the recipe of a new project."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.lock.config.recipe import Recipe, recipe_from
from builder.lock.config.yamlfile import YamlFile

#: Folder of the project's own files in an image.
APP = "/app"
#: Names of scripts that people start.
_USUAL_SCRIPTS = ("train.py", "main.py", "app.py", "run.py", "__main__.py")


#: Keys of a new recipe, in the order in which they are written.
_KEYS = (
    *("site", "base", "platform", "environment", "lock", "groups", "virtual_packages", "python"),
    *("base_packages", "conda", "pip", "files", "env", "workdir", "cmd"),
)


@dataclass(frozen=True)
class Draft:
    """A new recipe."""

    name: str
    keys: dict[str, Any]
    """Its keys, with ``files`` as targets by source. Empty ones are not written: defaults and the
    site decide."""

    @property
    def script(self) -> str:
        """The Python file below :data:`APP` that the image runs: the only one or only usual name.

        Empty if there are several.
        """
        files: dict[str, str] = self.keys.get("files", {})
        targets = [target.removeprefix(f"{APP}/") for target in files.values()]
        scripts = [target for target in targets if target.endswith(".py")]
        usual = [name for name in scripts if name in _USUAL_SCRIPTS]
        for found in (scripts, usual):
            if len(found) == 1 and "/" not in found[0]:
                return found[0]
        return ""

    def data(self) -> dict[str, Any]:
        """Return the keys of the recipe, in the order in which they are written."""
        files = self.keys.get("files", {})
        source = files.get("src")
        keys = {
            **self.keys,
            "files": [{"source": source, "target": target} for source, target in files.items()],
            "env": {**self.keys.get("env", {}), **({"PYTHONPATH": source} if source else {})},
            "workdir": APP if files else "",
            "cmd": ["python", self.script] if self.script else [],
        }
        return {key: keys[key] for key in _KEYS if keys.get(key)}

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
