"""Mirrors (``BUILDER_MIRRORS``, pairs ``FROM=TO``) of what locks name by public addresses.

FROM is a prefix that ends where a part of the address ends: ``https://host/a`` is a prefix of
``https://host/a/b``, but not of ``https://host/ab``. A lock always contains the public address, so
it is the same with and without mirrors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from urllib.parse import unquote

from builder.oci.reference import Reference
from builder.redact import redact, without_userinfo
from builder.settings import Settings, expand_home

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
    for source, target in settings.mirrors:
        rest = below(url, source)
        if rest is not None:
            mirrored = _as_url(target) + rest
            log.info("%s: using the mirror %s", redact(url), redact(mirrored))
            return mirrored
    return url


def public_url(settings: Settings, url: str) -> str:
    """Return the public address of a URL in a mirror, the reverse of :func:`mirrored_url`.

    User names and passwords in the URLs are ignored.
    """
    for source, target in settings.mirrors:
        rest = below(without_userinfo(url), without_userinfo(_as_url(target)))
        if rest is not None:
            return source.rstrip("/") + rest
    return url


def _as_url(target: str) -> str:
    url = target if "://" in target else expand_home(target).absolute().as_uri()
    return url.rstrip("/")


def mirrored_base(settings: Settings, reference: str) -> str:
    """Return the base image to open instead of ``reference``; without a mirror the same.

    The prefix ``docker://HOST/REPOSITORY`` (for Docker Hub ``docker://docker.io/library/...``)
    leads to another registry (``docker://HOST[:PORT]/...``) or to OCI layouts (``oci:DIR``, or a
    folder). The prefix of a file (``sif:/appl/...``, ``oci:...``) may be written with its kind or
    without.
    """
    kind, _, path = reference.partition(":")
    if path.startswith("//"):
        return _mirrored_registry(settings, kind, reference)
    for source, target in settings.mirrors:
        rest = below(path, source.removeprefix(f"{kind}:"), ends="/:@")
        if rest is not None:
            return f"{kind}:{target.removeprefix(f'{kind}:').rstrip('/')}{rest}"
    return reference


def _mirrored_registry(settings: Settings, kind: str, reference: str) -> str:
    canonical = f"{kind}://{Reference.parse(reference)}" if kind == "docker" else reference
    for source, target in settings.mirrors:
        rest = below(canonical, source, ends="/:@")
        if rest is not None:
            layout = "oci:" if target.startswith(_FOLDER) else ""
            return layout + target.rstrip("/") + rest
    return reference


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
