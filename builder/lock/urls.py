"""The variables of the project's URLs in what a solver returns: a lock has their names, not their
values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from builder.core.errors import SolveError
from builder.core.model import Lock, LockedPackage
from builder.core.redact import redact, without_userinfo
from builder.core.settings import Settings
from builder.formats.net.mirrors import below, moved_back, public_url
from builder.formats.net.urlvariables import TO_VARIABLE, UrlVariables, variables_in

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


def named_url(url: str, settings: Settings, sources: Sequence[str]) -> str:
    """Return the URL of a package as a lock stores it: public, with the names of variables.

    Args:
        url: that of a solver, which may be in a mirror, and have the values of variables.
        settings: the mirrors.
        sources: the URLs of channels or indexes, with the names of variables.

    Raises:
        SolveError: see :func:`public`.
    """
    found = public_url(settings, _with_variables(url, sources))
    return public(_with_variables(found, sources))


def _with_variables(url: str, sources: Sequence[str]) -> str:
    """Return a URL with the names of variables if it begins as a source does up to its last one.

    So :class:`UrlVariables` returns the same URL again.
    """
    starts = [match[0] for source in sources if (match := TO_VARIABLE.match(source))]
    values = ((UrlVariables((start,)).expanded(start), start) for start in starts)
    return moved_back(url, values) or url


def checked_urls(lock: Lock, settings: Settings, sources: Sequence[str]) -> Lock:
    """Return a lock, if its URLs are for all machines, whichever solver or tool found them.

    Args:
        lock: a lock. Its channels may name a folder, or a mirror by its own address.
        settings: the mirrors.
        sources: the URLs of the project's files that have variables.

    Raises:
        SolveError: a URL has the value of a variable, is in a folder or on the server of a mirror.
    """
    named = [url for url in (*sources, *lock.channels) if "://" in url]
    mirrors = {urlsplit(without_userinfo(target)).netloc for _, target in settings.mirrors}
    mirrors -= {"", *(urlsplit(channel).netloc for channel in lock.channels)}
    for package in lock.packages:
        is_local = _is_in_folder(package.url, lock.channels)  # a repository may be file://
        for url in filter(None, (package.url, getattr(package.source, "url", ""))):
            is_mirror = package.manager == "conda" and urlsplit(url).netloc in mirrors
            if unexpanded(url, named) != url or is_mirror or is_local:
                raise _refused(package, url)
    return lock


def _refused(package: LockedPackage, url: str) -> SolveError:
    host = urlsplit(url).hostname or "this machine"
    return SolveError(
        f"{package.name} {package.version}: no lock can have its URL (on {host}): it has the "
        "value of a variable, or is that of a mirror or a folder",
        "name that address, with its variables, as a channel or index, or in "
        "BUILDER_MIRRORS; if a value is no secret, write it in place of its variable",
    )


def _is_in_folder(url: str, channels: Sequence[str]) -> bool:
    """Return whether a URL is in a folder that no channel names."""
    named = (below(url, name) is not None or name.startswith((".", "/", "~")) for name in channels)
    return url.startswith("file:") and not any(named)


def unexpanded(text: str, urls: Iterable[str]) -> str:
    """Return a solver's text with the names of variables in place of their values.

    Replaces the values of the variables in ``urls`` with ``${NAME}``, where a value is a user name,
    a password or a part of a path: values may be secret, and must not be in a lock or a message.
    """
    names = {name for url in urls for name in variables_in(url)}
    for name in sorted(names):
        if value := os.environ.get(name):
            secret = rf"(?<![^\W_]){re.escape(value.rstrip('/'))}(?![\w.~%-])"
            text = re.sub(secret, f"${{{name}}}".replace("\\", r"\\"), text)
    return text
