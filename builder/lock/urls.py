"""Addresses as they may stand in a lock file or a message: without credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from builder.errors import ConfigError
from builder.redact import redact

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def expanded(url: str, where: str) -> str:
    """A URL with its environment variables (``$NAME``, ``${NAME}``) put in, as conda-lock does when it is used.

    Raises:
        ConfigError: one of them is not set; ``where`` says who names the URL.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise ConfigError(
                f"{where}: {redact(url)}: the environment variable {name} is not set", f"export {name}=..."
            )
        return os.environ[name]

    return _VARIABLE.sub(value, url)


def unexpanded(text: str, urls: Iterable[str]) -> str:
    """A text with ``${NAME}`` wherever the value of a variable of ``urls`` stands as a user, a password or a part of a path.

    What solvers give and say holds the values, and no lock file or message may.
    """
    for name in sorted({m[1] or m[2] for url in urls for m in _VARIABLE.finditer(url)}):
        if value := os.environ.get(name):
            secret = rf"(?<=[/:@]){re.escape(value)}(?![\w.~%-])"
            text = re.sub(secret, f"${{{name}}}".replace("\\", r"\\"), text)
    return text
