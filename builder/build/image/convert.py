"""Opens images by name, and converts OCI images to SIFs and to plain squashfs images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from builder.build.bases.image import WantedBase, stored_image
from builder.build.bases.reference import path_and_tag
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.errors import UsageError
from builder.core.model import Compression, Image, SifImage
from builder.core.workspace import Workspace
from builder.formats.oci.layout import read_layout
from builder.formats.sif.plain import write_plain
from builder.formats.sif.read import open_sif
from builder.formats.sif.write import write_sif

KINDS = ("oci", "docker-archive", "docker", "sif", "squashfs")
#: How the names of plain squashfs images end.
SQUASHFS_SUFFIXES = (".sqsh", ".squashfs")
_NAMES = "write it as FILE.sif, oci:DIR:TAG, docker-archive:FILE or docker://host/repository:tag"


def split_kind(reference: str) -> tuple[str, str]:
    """Return the kind of an image's name, and the rest; ``.sif`` and ``.sqsh`` need no kind.

    Raises:
        UsageError: the name is of none of the kinds.
    """
    kind, sep, rest = reference.partition(":")
    if sep and rest and kind in KINDS:
        return kind, rest
    if reference.endswith(".sif"):
        return "sif", reference
    if reference.endswith(SQUASHFS_SUFFIXES):
        return "squashfs", reference
    raise UsageError(f"{reference!r} does not name an image", _NAMES)


def open_image(
    reference: str, work: Workspace, *, architecture: str | None = None
) -> Image | SifImage:
    """Open an image by its name.

    Args:
        reference: ``FILE.sif``, ``sif:FILE``, ``oci:DIR[:TAG]``,
            ``docker-archive:FILE`` or ``docker://NAME``.
        architecture: which image to take if there are several. None: the only one; ``amd64`` for
            archives and registries.

    Raises:
        UsageError: the name is of none of these kinds.
        ImageError, RegistryError: there is no such image, or it is damaged.
    """
    kind, rest = split_kind(reference)
    if kind == "sif":
        return open_sif(Path(rest), work.store, architecture)
    if kind == "squashfs":
        raise UsageError(f"{rest}: a plain squashfs is not an image that builder reads", _NAMES)
    if kind == "oci":
        return read_layout(*path_and_tag(rest, Path()), architecture)
    wanted = WantedBase(architecture or "amd64")
    locked = resolve_base(reference, wanted, work)
    base = open_base(locked, wanted, work)
    return replace(stored_image(reference, base.digest, work.store), layers=base.layers)


# conversion ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of a conversion."""

    source_digest: str
    digest: str
    """Of the bytes of the new image."""
    size: int
    """Bytes of the new image."""


def convert_image(
    source: str,
    dest: str,
    work: Workspace,
    *,
    compression: Compression | None = None,
    architecture: str | None = None,
) -> Converted:
    """Convert an OCI image to a SIF or a plain squashfs.

    Args:
        source: the image's name, see :func:`open_image`.
        dest: the name of the new image: ``FILE.sif`` or ``FILE.sqsh``.
        compression: of a squashfs. None: zstd in a SIF, gzip in a plain one.
        architecture: which image of the source to take if there are several.

    Raises:
        UsageError: a name is of no known kind, ``dest`` is neither, or ``source`` is a SIF.
        ImageError, RegistryError: there is no such image, or it is damaged.
        SpaceError: the disk is full.
    """
    kind, rest = split_kind(dest)
    if kind not in ("sif", "squashfs"):
        hint = "for OCI images: skopeo copy SOURCE DEST; or builder build --to docker-archive:FILE"
        raise UsageError(f"convert writes SIFs and plain squashfs images, not {dest}", hint)
    image = open_image(source, work, architecture=architecture)
    if isinstance(image, SifImage):
        raise UsageError(
            f"{source} is a SIF, and convert reads OCI images",
            "convert the OCI image that the SIF was built from, or build the target with format: oci",
        )
    if kind == "squashfs":
        digest, size = write_plain(image, Path(rest), work, compression=compression or "gzip")
        return Converted(image.digest, digest, size)
    sif = write_sif(image, Path(rest), work, compression=compression or "zstd")
    return Converted(image.digest, sif.digest, sif.size)
