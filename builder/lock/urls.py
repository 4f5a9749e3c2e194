"""The variables of the project's URLs in what a solver returns: a lock has their names, not their
values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from builder.core.errors import SolveError
from builder.core.redact import redact
from builder.formats.net.urlvariables import variables_in

from .config.recipe import Recipe


def recipe_urls(recipe: Recipe) -> list[str | None]:
    """Return the channels, indexes and find-links of a recipe, whether they are URLs or not."""
    pip = recipe.pip
    return [*recipe.conda.channels, pip.index_url, *pip.extra_index_urls, *pip.find_links]


def filename_of(address: str) -> str:
    """Return the file name at the end of a URL, without query and fragment, or of a path."""
    path = re.split("[?#]", address)[0] if "://" in address else address
    return unquote(path).rpartition("/")[2]


def public(url: str) -> str:
    """Return the URL of a package as a lock stores it: without credentials and fragment.

    Raises:
        SolveError: its query has values, which may be secret, so that the stored URL would not
            work.
    """
    stored = redact(url.partition("#")[0])
    if stored.partition("?")[2] != url.partition("#")[0].partition("?")[2]:
        raise SolveError(
            f"{stored}: the query of this URL may hold a secret, so a lock cannot store it",
            "use a channel or index whose URLs have no query (credentials belong into ~/.netrc or a "
            "variable: ?key=$NAME), or download the file into a find-links folder",
        )
    return stored


def unexpanded(text: str, urls: Iterable[str]) -> str:
    """Return a solver's text with the names of variables in place of their values.

    Replaces the values of the variables in ``urls`` with ``${NAME}``, where a value is a user name,
    a password or a part of a path: values may be secret, and must not be in a lock or a message.
    """
    names = {name for url in urls for name in variables_in(url)}
    for name in sorted(names):
        value = os.environ.get(name)
        if value:
            secret = rf"(?<=[/:@]){re.escape(value)}(?![\w.~%-])"
            text = re.sub(secret, f"${{{name}}}".replace("\\", r"\\"), text)
    return text
