"""Files beside the modules: scripts in other languages, and tables of text for people in YAML.

They are read once, when they are needed: most commands run no script and explain no error.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any


@functools.cache
def read_beside(module: str, name: str) -> str:
    """Return the text of a file in the folder of a module; ``module`` is its ``__file__``."""
    return Path(module).with_name(name).read_text("utf-8")


def script(module: str, name: str, /, **values: str) -> str:
    """Return a script beside a module.

    Args:
        module: ``__file__`` of the module.
        name: of the file.
        values: by name, what replaces ``@NAME@`` in it. In a line of its own, ``@NAME@`` stands for
            any number of lines, each with its line break.
    """

    def value(found: re.Match[str]) -> str:
        return values[(found[1] or found[2]).lower()]

    return re.sub(r"(?m)^@([A-Z_]+)@\n|@([A-Z_]+)@", value, read_beside(module, name))


@functools.cache
def table(module: str, name: str) -> Any:
    """Return the content of a YAML file beside a module; ``module`` is its ``__file__``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: seven times as fast
    return yaml.load(read_beside(module, name), loader)  # noqa: S506 both loaders are safe


@functools.cache
def any_of(module: str, name: str, flags: int = 0) -> re.Pattern[str]:
    """Return an expression for any of the patterns in a file beside a module, one in each line."""
    return re.compile("|".join(read_beside(module, name).splitlines()), flags)


def search(patterns: str, text: str, flags: int = 0) -> re.Match[str] | None:
    """Find the first of some patterns in a text; a table has one pattern in each line."""
    return re.search("|".join(patterns.splitlines()), text, flags)
