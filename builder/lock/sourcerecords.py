"""The sources of a lock's wheels as text in its metadata, where conda-lock ignores them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from builder.core.model import WHEELS, LockedPackage, LockedSource, canonical_json
from builder.core.redact import redact, userinfo

from .config.explain import first_problem

_SOURCES = TypeAdapter(dict[str, LockedSource])
SHA256 = re.compile(r"[0-9a-f]{64}")
#: A commit or tree: SHA-1, or SHA-256 in repositories of that format.
GIT_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
#: A text without blanks, control characters and changes of direction.
TEXT = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]{1,4096}")
#: A package of a build, as uv reads it.
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")
_WEB = ("https://", "http://")
GIT_URLS = (*_WEB, "ssh://", "git://", "file://")


def rendered_sources(packages: Iterable[LockedPackage]) -> str:
    """Return the sources of packages as canonical JSON, without credentials; empty if none."""
    found = {}
    for package in packages:
        if package.source is not None:
            source = replace(package.source, url=locked_url(package.source.url))
            values = {key: value for key, value in asdict(source).items() if value}
            found[canonicalize_name(package.name)] = values
    return canonical_json(found).decode() if found else ""


def locked_url(url: str) -> str:
    """Return a source's URL without credentials; ssh needs the user's name (``git``)."""
    user = userinfo(url).removesuffix("@").partition(":")[0]
    if not url.startswith("ssh://") or not user:
        return redact(url)
    return redact(url).replace("ssh://", f"ssh://{user}@", 1)


def with_sources(
    packages: Sequence[LockedPackage], sources: Mapping[str, LockedSource]
) -> tuple[LockedPackage, ...]:
    """Return the packages, those that builder built with their sources."""
    return tuple(
        replace(package, source=sources.get(canonicalize_name(package.name)))
        if package.url.startswith(WHEELS)
        else package
        for package in packages
    )


def parse_sources(text: str) -> dict[str, LockedSource]:
    """Read :func:`rendered_sources`.

    Raises:
        ValueError: it is damaged, or names a path outside of the project.
    """
    if not text:
        return {}
    try:
        sources = _SOURCES.validate_json(text)
    except ValidationError as e:
        raise ValueError(first_problem(e)[1]) from None
    for name, source in sources.items():
        if problem := next((text for is_wrong, text in _checks(source) if is_wrong), ""):
            raise ValueError(f"{name}: {problem}")
    return sources


def _checks(source: LockedSource) -> Iterator[tuple[bool, str]]:
    """Yield, for each rule of a source and of its kind, whether it is broken and the problem."""
    url, tree, is_url = source.url, source.tree, False
    yield not TEXT.fullmatch(url), "url is missing, or has a blank or a control character"
    with suppress(ValueError):
        is_url = bool(urlsplit(url))
    yield not is_url, "url is not valid"
    yield not stays_inside(source.subdirectory), "subdirectory leads out of the source"
    is_text = TEXT.fullmatch(source.build + source.describe or "none")
    yield not is_text, "build or describe has a blank or a control character"
    is_pinned = all(map(_PINNED.fullmatch, source.requires))
    yield not is_pinned, "requires is not a list of NAME==VERSION"
    match source.kind:
        case "git":
            yield not url.startswith(GIT_URLS), "url is not that of a git repository"
            is_git = GIT_HASH.fullmatch(source.commit) and GIT_HASH.fullmatch(tree)
            yield not is_git, "commit or tree is not a hash of git"
        case "local":
            yield not stays_inside(url), "url is not a path inside the project"
            yield not SHA256.fullmatch(tree), "tree is not 64 hex digits"
        case _:
            is_known = url.startswith(_WEB) or ("://" not in url and stays_inside(url))
            yield not is_known, "url is neither on the web nor a path inside the project"
            yield not SHA256.fullmatch(source.sha256), "sha256 is not 64 hex digits"


def stays_inside(path: str) -> bool:
    """Return whether a path with ``/`` is relative and stays in its folder."""
    leads_out = "\\" in path or ".." in PurePosixPath(path).parts
    return not leads_out and not path.startswith(("/", "~", "-"))
