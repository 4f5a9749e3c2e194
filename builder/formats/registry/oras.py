"""SIF files in OCI registries, as Apptainer and SingularityCE push and pull them (``oras://``).

Such an artifact is a manifest with the config ``{}`` and one layer, which is the SIF file. Here it
is an :class:`Image`, so it is pushed, tagged and written to OCI layouts as images are. The same SIF
has the same digest, and is not uploaded again.
"""

from __future__ import annotations

import functools
import glob
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from builder.core.errors import HashMismatch, ImageError
from builder.core.model import Descriptor, Image, Layer, SifImage
from builder.core.progress import working
from builder.core.store.blobs import Store
from builder.core.store.durable import sync_file, sync_folder
from builder.core.store.files import copy_hashed, require_space, space_errors
from builder.core.store.reading import Reader
from builder.core.store.temporary import claimed, remove_left_behind
from builder.formats.oci.image import assemble
from builder.formats.oci.manifest import parse_manifest

from .client import RegistryClient

log = logging.getLogger(__name__)

SIF_CONFIG = "application/vnd.sylabs.sif.config.v1+json"
SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
#: What Singularity before 3.7 pushes (its issue 4437), and newer programs still pull.
_FIRST_SIF_LAYER = "appliciation/vnd.sylabs.sif.layer.tar"
#: The annotation for a layer's file name. Apptainer 1.x refuses to pull a layer without it.
TITLE = "org.opencontainers.image.title"
#: A SIF begins with a line for the kernel of 32 bytes, and these bytes (SIF specification, global
#: header).
_MAGIC = b"SIF_MAGIC\0"
_MAGIC_AT = 32


def sif_artifact(sif: SifImage, name: str, annotations: Mapping[str, str] | None = None) -> Image:
    """Return the artifact of a SIF: the same bytes and the same title have the same digest.

    Args:
        sif: the file.
        name: its title in the registry, ``TARGET.sif``.
        annotations: of the manifest.

    Raises:
        ImageError: the file is not a SIF.
    """
    check_sif(sif.path)
    described = Descriptor(SIF_LAYER, sif.digest, sif.size, {TITLE: name})
    layer = Layer(described, sif.digest, sif.path, title=name)
    more = {"annotations": dict(annotations)} if annotations else {}
    return assemble([layer], b"{}", SIF_CONFIG, **more)


def sif_layer(manifest: bytes, descriptor: Descriptor, where: str) -> Descriptor | None:
    """Return the SIF of an artifact's manifest; None when the manifest is of something else.

    Args:
        manifest: its bytes.
        descriptor: its digest, for messages.
        where: its name, for messages.

    Raises:
        ImageError: the manifest is damaged.
    """
    data = parse_manifest(manifest, descriptor, where)
    layers = [Descriptor.from_json(d) for d in data["layers"]]
    return layers[0] if len(layers) == 1 and is_sif(layers[0]) else None


def is_sif(layer: Descriptor) -> bool:
    """Return whether a layer is a SIF."""
    return layer.media_type in (SIF_LAYER, _FIRST_SIF_LAYER)


def check_sif(path: Path) -> None:
    """Raise ImageError unless a file begins as a SIF does."""
    hint = "build the SIF first, or correct the path"
    with Reader(ImageError, hint).open(path, hint) as (f, _):
        head = f.read(_MAGIC_AT + len(_MAGIC))
    if head[_MAGIC_AT:] != _MAGIC:
        hint = "it is another kind of image, or damaged: build or pull it again"
        raise ImageError(f"{path} is not a SIF", hint)


def pull_sif(
    client: RegistryClient, repository: str, layer: Descriptor, output: Path, store: Store
) -> bool:
    """Download a SIF to ``output`` unless that file is the SIF already.

    It is downloaded into the same folder, verified and renamed: ``output`` is always the old file
    or the new one, also after a power loss. A download that was interrupted is resumed.

    Args:
        client: the registry; its reporter receives progress.
        repository: in that registry.
        layer: the SIF, from :func:`sif_layer`.
        output: the file.
        store: records that the file was verified.

    Returns:
        Whether anything was transferred.

    Raises:
        RegistryError: the registry refuses, or cannot be reached.
        HashMismatch: the content does not match the digest, twice; it was deleted.
        ImageError: it is not a SIF.
        SpaceError: the disk is full.
    """

    def fetch(partial: Path) -> None:
        present = partial.stat().st_size if partial.exists() else 0
        require_space(output.parent, layer.size - present, output.name)
        task = f"pulling {output.name}"
        advance = functools.partial(client.reporter.advance, task)
        with working(client.reporter, task, layer.size):
            client.blobs.download_to_file(repository, layer, partial, advance)

    return _write_sif(layer, output, store, fetch)


def copy_sif(blob: Path, layer: Descriptor, output: Path, store: Store) -> bool:
    """Copy a SIF from an OCI layout to ``output``, as :func:`pull_sif` downloads one.

    It is never a hard link: signing a SIF, or adding to it, changes the file itself.

    Args:
        blob: the file in the layout.
        layer: the SIF, from :func:`sif_layer`.
        output: the file.
        store: records that the file was verified.

    Returns:
        Whether anything was copied.

    Raises:
        ImageError: the blob is missing, or is not a SIF.
        HashMismatch: the blob does not match its digest.
        SpaceError: the disk is full.
    """

    def fetch(partial: Path) -> None:
        try:
            digest = copy_hashed(blob, partial)
        except FileNotFoundError:
            raise ImageError(f"{blob} is missing", "build or publish it again") from None
        if digest != layer.digest:
            partial.unlink()
            message = f"digest mismatch: {blob} is no longer {layer.digest}"
            raise HashMismatch(message, "it was changed or damaged: build or publish it again")

    return _write_sif(layer, output, store, fetch)


def _write_sif(
    layer: Descriptor, output: Path, store: Store, fetch: Callable[[Path], None]
) -> bool:
    """Make ``output`` the SIF; ``fetch`` fills the partial file. Return False if it was the SIF.

    The nodes of a job may pull into one shared folder at the same time, each with its own cache,
    and file locks may not work across nodes. So every process claims a separate partial file;
    those that share a cache wait for each other.
    """
    if output.is_dir():
        raise ImageError(f"{output} is a folder", "name the file for the SIF")
    if store.verify(output, layer.digest):
        log.info("%s is the SIF %s already", output, layer.digest)
        return False
    digits = store.path(layer.digest).name[:16]
    with space_errors(output.parent), store.lock(f"sif {output.absolute()}"):
        if store.verify(output, layer.digest):
            return False
        with claimed(output.with_name(f".{output.name}.{digits}.part")) as partial:
            # Incomplete downloads of other versions, and those of processes that were killed.
            for other in output.parent.glob(f".{glob.escape(output.name)}.{'[0-9a-f]' * 16}.part"):
                other.unlink(missing_ok=True)
            remove_left_behind(output.parent)
            fetch(partial)
            try:
                check_sif(partial)
            except ImageError:
                partial.unlink()
                raise
            partial.chmod(0o755)  # as Apptainer does: a SIF is executable
            sync_file(partial)
            store.mark_verified(output, layer.digest, partial)
            partial.replace(output)
            sync_folder(output.parent)
    return True
