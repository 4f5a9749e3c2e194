"""Mirrors (``BUILDER_MIRRORS``, pairs ``FROM=TO``) of what locks name by public addresses.

FROM is a prefix that ends where a part of the address ends: ``https://host/a`` is a prefix of
``https://host/a/b``, but not of ``https://host/ab``. A lock always contains the public address, so
it is the same with and without mirrors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from builder.core.redact import redact, without_userinfo
from builder.core.settings import Settings, expand_home
from builder.formats.oci.reference import Reference

log = logging.getLogger(__name__)

_FOLDER = ("/", "./", "../", "~")


def mirrors_of(settings: Settings, url: str) -> Iterator[str]:
    """Yield a URL's mirrored addresses, in the order of the setting; in a folder, the path.

    A URL with ``..`` would lead out of a folder, and has none.
    """
    for source, target in settings.mirrors:
        rest = below(url, source)
        if rest is None:
            continue
        path = unquote(re.split("[?#]", rest)[0])
        if ".." not in path.split("/"):
            yield target.rstrip("/") + (rest if "://" in target else path)


def mirrored_url(settings: Settings, url: str) -> str:
    """Return a URL's first mirrored address, ``file:`` for a folder; without a mirror the URL."""
    mirrored = moved(url, ((source, _as_url(target)) for source, target in settings.mirrors))
    if mirrored is None:
        return url
    log.info("%s: using the mirror %s", redact(url), redact(mirrored))
    return mirrored


def public_url(settings: Settings, url: str) -> str:
    """Return the public address of a URL in a mirror, the reverse of :func:`mirrored_url`.

    User names and passwords in the URLs are ignored.
    """
    back = ((without_userinfo(_as_url(target)), source) for source, target in settings.mirrors)
    return moved_back(without_userinfo(url), back) or url


def _as_url(target: str) -> str:
    return target if "://" in target else expand_home(target).absolute().as_uri()


def mirrored_base(settings: Settings, reference: str) -> str:
    """Return the base image to open instead of ``reference``; without a mirror the same.

    The prefix ``docker://HOST/REPOSITORY`` (for Docker Hub ``docker://docker.io/library/...``)
    leads to another registry (``docker://HOST[:PORT]/...``) or to OCI layouts (``oci:DIR``, or a
    folder). The prefix of a file (``sif:/appl/...``, ``oci:...``) may be written with its kind or
    without.
    """
    kind, _, path = reference.partition(":")
    if not path.startswith("//"):
        bare = [[part.removeprefix(f"{kind}:") for part in pair] for pair in settings.mirrors]
        files = ((source, f"{kind}:{target}") for source, target in bare)
        return moved(path, files, ends="/:@") or reference
    canonical = f"{kind}://{Reference.parse(reference)}" if kind == "docker" else reference
    registries = (
        (source, f"oci:{target}" if target.startswith(_FOLDER) else target)
        for source, target in settings.mirrors
    )
    return moved(canonical, registries, ends="/:@") or reference


def moved(address: str, pairs: Iterable[tuple[str, str]], ends: str = "/") -> str | None:
    """Return an address with another prefix: the first of the pairs that fits; None if none does.

    Args:
        address: the address.
        pairs: old and new prefixes.
        ends: see :func:`below`.
    """
    for old, new in pairs:
        rest = below(address, old, ends)
        if rest is not None:
            return new.rstrip("/") + rest
    return None


def moved_back(address: str, pairs: Iterable[tuple[str, str]]) -> str | None:
    """Return the same with the longest old prefix that fits: the reverse of several moves."""
    return moved(address, sorted(pairs, key=lambda pair: len(pair[0]), reverse=True))


def below(address: str, prefix: str, ends: str = "/") -> str | None:
    """Return the rest of an address after a prefix; None if it does not begin with the prefix.

    Args:
        address: the address.
        prefix: the prefix; a final slash makes no difference.
        ends: the characters with which a non-empty rest has to begin.
    """
    stem = prefix.rstrip("/")
    if not stem or not address.startswith(stem):
        return None
    rest = address[len(stem) :]
    return rest if not rest or rest[0] in ends else None
