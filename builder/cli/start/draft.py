"""A draft: the few facts from which ``builder init`` makes the recipe of a new project."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    files: tuple[tuple[str, str], ...] = ()
    """Source, relative to the project folder, and target of each file or folder."""
    channels: tuple[str, ...] = ()
    """Conda channels, where the environment file names none."""
    base_python: bool = False
    """Take Python from the base, and no conda packages."""
    base_packages: tuple[str, ...] = ()
    """OS packages to add to the base."""
    built: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The project's own package if it is compiled, with the OS packages that its build needs."""
    pip_fallback: bool = False
    """Use pip's own configuration if an index does not answer."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the image."""
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    """Those that the environment file declares."""

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
        keys: dict[str, Any] = {"site": self.site, "base": self.base, "platform": self.platform}
        keys |= {"environment": self.environment, "lock": self.lock}
        keys["groups"] = list(self.groups)
        keys["virtual_packages"] = dict(self.virtual_packages)
        keys["python"] = "base" if self.base_python else ""
        keys["base_packages"] = list(self.base_packages)
        keys["conda"] = {"channels": list(self.channels)} if self.channels else {}
        keys["pip"] = {"fallback": "pip"} if self.pip_fallback else {}
        if built := {name: {"base_packages": list(p)} for name, p in self.built.items()}:
            keys["pip"]["build"] = built
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
