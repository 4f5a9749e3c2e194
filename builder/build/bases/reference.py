"""References to base images, as recipes and locks write them.

========================================================  ==================================================
``docker://[HOST/]REPOSITORY[:TAG][@DIGEST]``             an image in a registry
``oci:DIR[:TAG]``                                         an image in an OCI layout
``docker-archive:FILE[:TAG]``                             what ``docker save`` writes
``debian:SUITE``                                          a minimal Debian, made on this machine
``sif:FILE``                                              a SIF
========================================================  ==================================================
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.core.datafiles import table
from builder.core.errors import ConfigError, RegistryError
from builder.core.settings import expand_home
from builder.formats.oci.reference import Reference

_OWN = "for an image of this project: oci:dist:TARGET; without a registry: base: debian:bookworm"
KINDS = ("docker", "oci", "docker-archive", "debian", "sif")
_FORMS = (
    "write it as docker://host/repository:tag, oci:DIR[:TAG], docker-archive:FILE, debian:SUITE "
    "or sif:FILE; a tar of an OCI layout has to be unpacked: oci:DIR"
)


def split_reference(reference: str) -> tuple[str, str]:
    """Return the kind of a base reference, and what follows it.

    Raises:
        ConfigError: the kind is not one of :data:`KINDS`, or nothing follows it.
    """
    kind, colon, rest = reference.partition(":")
    is_complete = bool(colon and rest) and kind in KINDS
    if kind == "docker":
        is_complete = rest.startswith("//") and len(rest) > 2
        rest = rest.removeprefix("//")
    if not is_complete:
        hint = _meant(reference) or _FORMS
        raise ConfigError(f"base {reference!r} is not a reference to an image", hint)
    return kind, rest


def _meant(reference: str) -> str:
    """Return the hint for a reference without its kind; empty if it is not known what is meant."""
    for pattern, hint in table(__file__, "meant.yaml").items():
        if found := re.fullmatch(pattern, reference, re.DOTALL):
            return str(hint.format(*found.groups()))
    plain = reference.removeprefix("docker:").removeprefix("oras://")
    try:
        name = Reference.parse(plain)
    except RegistryError:
        return ""
    return f"write base: docker://{name}; {_OWN}" if plain else ""


def path_and_tag(rest: str, root: Path) -> tuple[Path, str | None]:
    """Return the path of ``PATH``, ``PATH:TAG`` or ``PATH@sha256:...``, and the tag or digest.

    A path may have a colon itself: if the whole text exists as a path, there is no tag.

    Args:
        rest: a reference without its kind.
        root: the folder that relative paths start at.
    """
    whole = root / expand_home(rest)
    if whole.exists():
        return whole, None
    separator = "@" if "@sha256:" in rest else ":"
    path, _, tag = rest.partition(separator)
    return (root / expand_home(path), tag) if tag else (whole, None)
