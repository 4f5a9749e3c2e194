"""Mirrors: other places for what recipes and locks name by public addresses (``BUILDER_MIRRORS``, ``FROM=TO`` pairs).

A prefix ends where a part of the name ends: ``https://host/a`` is a prefix of ``https://host/a/b``, never of ``https://host/ab``.
Locks keep the public address, so they are the same with and without a mirror.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.oci.reference import Reference
from builder.redact import without_userinfo
from builder.settings import Settings

_FOLDER = ("/", "./", "../", "~")


def mirrors_of(settings: Settings, url: str) -> Iterator[str]:
    """Where else a URL is to be had, in the order of the setting; in a folder, by its path."""
    for source, target in settings.mirrors:
        if (rest := below(url, source)) is not None:
            yield target.rstrip("/") + (rest if "://" in target else unquote(urlsplit(rest).path))


def mirrored_url(settings: Settings, url: str) -> str:
    """The first mirror of a URL, as a URL: ``file:`` for a folder."""
    for source, target in settings.mirrors:
        if (rest := below(url, source)) is not None:
            return _as_url(target) + rest
    return url


def public_url(settings: Settings, url: str) -> str:
    """The public address of something that lies in a mirror: :func:`mirrored_url` the other way round. Users and passwords in
    URLs make no difference."""
    for source, target in settings.mirrors:
        if (rest := below(without_userinfo(url), without_userinfo(_as_url(target)))) is not None:
            return source.rstrip("/") + rest
    return url


def _as_url(target: str) -> str:
    return (target if "://" in target else Path(target).expanduser().absolute().as_uri()).rstrip("/")


def mirrored_base(settings: Settings, reference: str) -> str:
    """The base image reference to open instead of the one that a recipe or lock names; that one without a mirror.

    ``docker://HOST/REPOSITORY`` prefixes (Docker Hub's are ``docker://docker.io/library/...``) lead to another registry
    (``docker://HOST[:PORT]/...``) or to OCI layouts: ``oci:DIR``, or a folder. The prefixes of the kinds that are files
    (``sif:/appl/...``, ``oci:...``) are written with the kind or without.
    """
    kind, _, path = reference.partition(":")
    if path.startswith("//"):
        canonical = f"{kind}://{Reference.parse(reference)}" if kind == "docker" else reference
        for source, target in settings.mirrors:
            if (rest := below(canonical, source, ends="/:@")) is not None:
                if target.startswith(_FOLDER):
                    target = f"oci:{target}"
                return target.rstrip("/") + rest
        return reference
    for source, target in settings.mirrors:
        if (rest := below(path, source.removeprefix(f"{kind}:"), ends="/:@")) is not None:
            return f"{kind}:{target.removeprefix(f'{kind}:').rstrip('/')}{rest}"
    return reference


def below(place: str, prefix: str, ends: str = "/") -> str | None:
    """What follows a prefix that ends where a part of the name ends; None when it is not one."""
    stem = prefix.rstrip("/")
    rest = place[len(stem) :]
    return rest if place.startswith(stem) and stem and (not rest or rest[0] in ends) else None
