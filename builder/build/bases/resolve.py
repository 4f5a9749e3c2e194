"""Base images: what a reference names now, and the image that a lock pins. Each kind has a separate
module.

A base image lies below the environment, and its layers become part of the image byte for byte. The
module of a kind is imported when a base is of that kind.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from builder.core.errors import ConfigError, ImageError, RegistryError
from builder.core.model import LockedBase
from builder.core.redact import redact
from builder.core.settings import expand_home
from builder.core.workspace import Workspace
from builder.formats.net.mirrors import mirrored_base
from builder.formats.oci.layout import read_layout
from builder.formats.oci.reference import Reference
from builder.lock.config.recipe import Recipe
from builder.lock.config.yamlfile import place_of

from .debian import check_packages, check_suite, debian_base
from .image import BaseImage, WantedBase, layout_base, no_such_base, stored_base
from .reference import path_and_tag, split_reference

log = logging.getLogger(__name__)


#: The hint for a registry that does not answer.
_WITHOUT_REGISTRY = (
    "or name a copy of the base in BUILDER_MIRRORS (docs/offline.md); or take a base that needs no registry: "
    "base: debian:bookworm in the recipe"
)


def is_made_here(reference: str) -> bool:
    """Return whether this machine makes the base, which takes about a minute."""
    return reference.startswith("debian:")


def check_base(recipe: Recipe) -> None:
    """Check the keys ``base`` and ``base_packages`` of a recipe, without network and files.

    Raises:
        ConfigError: the reference or a name of a package is not valid.
    """
    key = "base"
    try:
        kind, rest = split_reference(recipe.base)
        if kind == "debian":
            check_suite(recipe.base)
        elif kind == "docker":
            Reference.parse(rest)
        key = "base_packages"
        check_packages(recipe.base_packages)
    except (ConfigError, RegistryError) as e:
        raise ConfigError(f"{place_of(recipe.source, key)}: {e.message}", e.hint) from None


def resolve_base(reference: str, wanted: Recipe | WantedBase, work: Workspace) -> LockedBase:
    """Return the image that a base reference names now, for the lock to pin.

    If BUILDER_MIRRORS has a mirror for it, the mirror is used.

    Raises:
        ConfigError: the reference is not valid.
        ImageError: there is no such image, it is for another architecture, or it is damaged.
        RegistryError: the registry refuses or cannot be reached.
    """
    kind, _ = split_reference(reference)
    if kind == "debian":
        return LockedBase(reference, debian_base(reference, wanted, work))
    actual = mirrored_base(work.settings, reference)
    log.info("the base %s is looked up as %s", redact(reference), redact(actual))
    kind, _ = split_reference(actual)
    if kind == "docker":
        from .registry import resolve_registry_base

        try:
            digest = resolve_registry_base(actual, wanted.architecture, work)
        except RegistryError as e:
            if e.status is None:  # no response
                e.hint = "; ".join(filter(None, (e.hint, _WITHOUT_REGISTRY)))
            raise
        return LockedBase(reference, digest)
    found = _open_local(actual, wanted, work)
    return LockedBase(reference, found.digest)


def open_base(
    locked: LockedBase, wanted: Recipe | WantedBase, work: Workspace, *, download: bool = True
) -> BaseImage:
    """Return the base image that a lock pins, from its mirror if BUILDER_MIRRORS names one.

    Args:
        locked: reference and digest. In a registry the digest counts, even if the tag has moved.
        wanted: what it has to be.
        work: the workspace.
        download: False leaves the layers of a registry's image where they are: their ``path`` is
            None, and ``origin`` names the repository.

    Raises:
        ConfigError, ImageError, RegistryError: as for :func:`resolve_base`. ImageError also when
            the image on this machine is not the locked one.
    """
    actual = mirrored_base(work.settings, locked.reference)
    kind, _ = split_reference(actual)
    if kind == "debian":
        digest = debian_base(locked.reference, wanted, work, locked.digest)
        base = stored_base(locked.reference, digest, work.store)
        if download:
            from .registry import present_layers

            base = replace(base, layers=present_layers(base.layers, work))
    elif kind == "docker":
        from .registry import open_registry_base

        base = open_registry_base(locked, actual, work, download=download)
    else:
        # BUILDER_MIRRORS names a copy, and may not be set at the next build
        keep = locked.reference.startswith("docker:")
        found = _open_local(actual, wanted, work, keep=keep)
        base = replace(found, reference=locked.reference)
        _check_pinned(base, locked, actual)
    _check_platform(base, wanted.architecture)
    return base


def _open_local(
    reference: str, wanted: Recipe | WantedBase, work: Workspace, *, keep: bool = False
) -> BaseImage:
    """Return an image in a file or folder of this machine; with ``keep`` one in a layout is stored."""
    kind, rest = split_reference(reference)
    own = wanted.root / expand_home(rest), None
    path, tag = own if kind == "sif" else path_and_tag(rest, wanted.root)
    if not path.exists():
        raise no_such_base(reference, path)
    if kind == "sif":
        from .sif import open_sif_base

        return open_sif_base(reference, path, wanted.architecture, work.store)
    if kind == "oci":
        image = read_layout(path, tag, wanted.architecture)
        return layout_base(reference, image, work.store, keep=keep)
    if not path.is_file():
        hint = f"for a folder write oci:{rest}"
        raise ImageError(f"base {reference}: {path} is not a file", hint)
    from .archive import open_docker_archive

    return open_docker_archive(reference, path, tag, work)


def _check_pinned(base: BaseImage, locked: LockedBase, actual: str) -> None:
    place = "it" if actual == locked.reference else actual
    if base.digest != locked.digest:
        raise ImageError(
            f"the lock pins the base {locked.reference} as {locked.digest}, but {place} holds {base.digest}",
            "restore the locked image, or pin this one: builder lock --update-base",
        )


def _check_platform(base: BaseImage, architecture: str) -> None:
    system = base.config.get("os") or "linux"
    found = base.config.get("architecture") or architecture  # crane append names none
    if (system, found) != ("linux", architecture):
        raise ImageError(
            f"the base {base.reference} is for {system}/{found}, the recipe for linux/{architecture}",
            "use another base, or correct the recipe's platform",
        )
