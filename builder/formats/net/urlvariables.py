"""Environment variables in URLs (``https://host/t/$TOKEN/channel``) and in paths of find-links, and
who may name them.

The value of a variable may be a secret, and a request sends it to a host. So only the files that
the user writes, recipe and environment file, say which variable goes to which host. A lock file is
data that nobody reads and that may come from elsewhere: its URLs get the values of variables only
where they repeat the beginning of a URL of those files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from builder.core.errors import ConfigError
from builder.core.redact import redact, userinfo

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
#: A URL or path up to the end of the part with its last variable.
TO_VARIABLE = re.compile(r".*\$(?:\{\w+\}|\w+)[^/?#]*")
#: Variables with builder's own credentials and settings: they are never put into a URL or a path.
_OWN = ("REGISTRY_", "BUILDER_")
#: Patterns of the beginnings of URLs and paths that were expanded, up to the last part with a variable, and
#: what is written for each.
_EXPANDED: dict[str, str] = {}


def is_own(name: str) -> bool:
    """Return whether a variable is builder's own, such as ``REGISTRY_PASSWORD``."""
    return name.upper().startswith(_OWN)


def variables_in(text: str) -> set[str]:
    """Return the names of the variables in a text, without a ``$`` in a literal password."""
    return {match[1] or match[2] for match in _VARIABLE.finditer(redact(text))}


def expanded(url: str, where: str) -> str:
    """Return a URL of the project's own files with the values of its variables, as conda-lock does.

    Args:
        url: the URL, or a path.
        where: the file or key that contains the URL, for the message.

    Raises:
        ConfigError: a variable is not set, is builder's own, or has a whole URL.
    """
    at = f"{where}: {redact(url)}"

    def value(name: str) -> str:
        if is_own(name):
            problem = f"{name} is builder's own variable and is not put into a URL or path"
            raise ConfigError(f"{at}: {problem}", "use a variable with another name")
        if not os.environ.get(name):
            problem = f"the environment variable {name} is not set"
            raise ConfigError(f"{at}: {problem}", f"export {name}=...")
        if "://" in os.environ[name]:
            problem = f"{name} is a whole URL, and would be in the lock"
            raise ConfigError(f"{at}: {problem}", f"write its host, too: https://HOST/${name}")
        return os.environ[name]

    return _replaced(url, {name: value(name) for name in sorted(variables_in(url))})


def as_written(text: str) -> str:
    """Return a text, in which URLs and paths that were expanded in this process have the names of
    their variables again, as the project's files do.
    """
    for pattern, written in _EXPANDED.copy().items():
        text = re.sub(pattern, written, text)
    return text


@dataclass(frozen=True, slots=True)
class UrlVariables:
    """The variables that URLs of a lock may contain."""

    sources: tuple[str, ...] = ()
    """URLs of channels, indexes and find-links, as in the project's files and pip's configuration."""

    def expanded(self, url: str) -> str:
        """Return a URL of a lock with the values of its variables.

        A variable stays as it is if it is not set, is builder's own, or no source with the same
        beginning, up to its last variable, names it.
        """
        if "$" not in url:
            return url
        names = {name for source in self.sources for name in self._of(source, url)}
        values = {n: os.environ[n] for n in names if os.environ.get(n) and not is_own(n)}
        return _replaced(url, values)

    def missing(self, url: str) -> Iterator[str]:
        """Yield the variables of a URL that no source names for it, whether set or not."""
        named = {name for source in self.sources for name in self._of(source, url)}
        yield from sorted(name for name in variables_in(url) if name not in named or is_own(name))

    @staticmethod
    def _of(source: str, url: str) -> set[str]:
        """Return the names that ``source`` allows in ``url``."""
        plain_source, plain_url = _plain(source), _plain(url)
        names = variables_in(source)
        matches = list(_VARIABLE.finditer(plain_source))
        if not names or not matches or _server(plain_source) != _server(plain_url):
            return set()
        return names if plain_url.startswith(plain_source[: matches[-1].end()]) else set()


#: No variable of a URL is replaced.
NO_VARIABLES = UrlVariables()


def _plain(url: str) -> str:
    """Return the URL without literal credentials and with all variables as ``${NAME}``."""
    return _VARIABLE.sub(lambda match: f"${{{match[1] or match[2]}}}", redact(url))


def _server(url: str) -> tuple[str, str]:
    """Return scheme and host of a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url
    return parts.scheme, parts.netloc


def _replaced(url: str, values: dict[str, str]) -> str:
    """Return the URL with the values of variables; a literal password stays as it is."""
    literal = userinfo(url)
    if literal and redact("https://" + literal + "h") == "https://h":
        head, tail = url.split(literal, 1)
        return _replaced(head, values) + literal + _replaced(tail, values)

    found = _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), url)
    named = TO_VARIABLE.match(url)
    if values and named and (value := found.removesuffix(url[named.end() :]).rstrip("/")):
        above = "" if value.startswith("/") or "://" in value else "/"  # of a relative path
        either = f"{re.escape(value)}|{re.escape(quote(value))}"
        _EXPANDED[rf"{above}(?:{either})(?![\w.~%-])"] = above + redact(named[0]).replace(
            "\\", r"\\"
        )
    return found
