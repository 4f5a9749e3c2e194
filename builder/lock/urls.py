"""Environment variables in URLs (``$TOKEN``): requests use their values, locks contain their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from builder.errors import ConfigError
from builder.redact import redact

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def expanded(url: str, where: str) -> str:
    """A URL with the values of its environment variables (``$NAME``, ``${NAME}``), as conda-lock does.

    Args:
        url: the URL.
        where: the file or key that contains the URL, for the message.

    Raises:
        ConfigError: a variable is not set.
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
    """The reverse of :func:`expanded` for a text that a solver returned or printed.

    Replaces the values of the variables in ``urls`` with ``${NAME}``, where a value is a user name, a
    password or a part of a path: values may be secret, and must not be in a lock or a message.
    """
    names = {match[1] or match[2] for url in urls for match in _VARIABLE.finditer(url)}
    for name in sorted(names):
        value = os.environ.get(name)
        if value:
            secret = rf"(?<=[/:@]){re.escape(value)}(?![\w.~%-])"
            text = re.sub(secret, f"${{{name}}}".replace("\\", r"\\"), text)
    return text
