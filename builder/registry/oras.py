"""SIFs in OCI registries, as Apptainer and SingularityCE push and pull them: ``oras://HOST/REPOSITORY:TAG``.

Such an artifact is a manifest with one layer, which is the SIF's bytes, and the config ``{}``. It is an :class:`Image` here, so
that it is pushed, tagged and put into OCI layouts as images are; an unchanged SIF has the same digest and is not sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from builder.errors import HashMismatch, ImageError
from builder.model import OCI_MANIFEST, Descriptor, Image, Layer, SifImage, canonical_json
from builder.oci.manifest import parse_manifest
from builder.progress import QUIET, Reporter
from builder.registry.client import RegistryClient, file_source
from builder.store.blobs import Store
from builder.store.files import require_space, space_errors

SIF_CONFIG = "application/vnd.sylabs.sif.config.v1+json"
SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
#: As Singularity before 3.7 wrote it, slip of the pen included; still read by all.
SIF_LAYER_PROTOTYPE = "appliciation/vnd.sylabs.sif.layer.tar"
#: Apptainer refuses to pull a layer without it.
TITLE = "org.opencontainers.image.title"
_EMPTY = b"{}"
#: Half a file that nobody has added to for so long will not be gone on with.
_STALE_S = 24 * 3600
#: A SIF begins with a line for the kernel, 32 bytes, and this (SIF, global header).
_MAGIC = b"SIF_MAGIC\0"
_MAGIC_AT = 32


def sif_artifact(sif: SifImage, name: str, annotations: Mapping[str, str] | None = None) -> Image:
    """The artifact of a SIF: the same bytes and title give the same digest.

    Args:
        sif: the file.
        name: its title in the registry, ``TARGET.sif``.
        annotations: of the manifest.

    Raises:
        ImageError: the file is not a SIF.
    """
    check_sif(sif.path)
    layer = Descriptor(SIF_LAYER, sif.digest, sif.size, {TITLE: name})
    config = Descriptor.of(SIF_CONFIG, _EMPTY)
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config.to_json(),
        "layers": [layer.to_json()],
    }
    manifest = canonical_json({**value, **({"annotations": dict(annotations)} if annotations else {})})
    described = Descriptor.of(OCI_MANIFEST, manifest)
    return Image((Layer(layer, sif.digest, sif.path, title=name),), _EMPTY, config, manifest, described)


def sif_layer(manifest: bytes, descriptor: Descriptor, where: str) -> Descriptor | None:
    """The SIF of an artifact's manifest; None when the manifest is that of something else.

    Raises:
        ImageError: the manifest is damaged.
    """
    layers = [Descriptor.from_json(d) for d in parse_manifest(manifest, descriptor, where)["layers"]]
    return layers[0] if len(layers) == 1 and is_sif(layers[0]) else None


def is_sif(layer: Descriptor) -> bool:
    """Whether a layer is a SIF."""
    return layer.media_type in (SIF_LAYER, SIF_LAYER_PROTOTYPE)


def check_sif(path: Path) -> None:
    """Raises ImageError unless a file begins as a SIF does."""
    try:
        with path.open("rb") as f:
            head = f.read(_MAGIC_AT + len(_MAGIC))
    except OSError as e:
        raise ImageError(f"{path}: {e.strerror}", "build the SIF first, or correct the path") from None
    if head[_MAGIC_AT:] != _MAGIC:
        raise ImageError(
            f"{path} is not a SIF", "it is another kind of image, or damaged: build or pull it again"
        )


def pull_sif(
    client: RegistryClient,
    repository: str,
    layer: Descriptor,
    output: Path,
    store: Store,
    reporter: Reporter = QUIET,
) -> bool:
    """Brings the SIF that ``layer`` describes to ``output``; whether anything had to be transferred.

    It is written beside its place, checked and renamed: ``output`` is the old file or the new one, whole. What an interrupted
    run left is gone on with.

    Raises:
        RegistryError: the registry does not give it.
        HashMismatch: what came is something else, twice; it was deleted.
        ImageError: it is not a SIF.
        SpaceError: the disk is full.
    """

    def fetch(partial: Path) -> None:
        have = partial.stat().st_size if partial.exists() else 0
        require_space(output.parent, layer.size - have, f"{output.name}")
        task = f"pull {output.name}"
        reporter.start(task, layer.size)
        try:
            client.get_blob_file(repository, layer, partial, lambda n: reporter.advance(task, n))
        finally:
            reporter.finish(task)

    return _place(layer, output, store, fetch)


def copy_sif(blob: Path, layer: Descriptor, output: Path, store: Store) -> bool:
    """Brings a SIF out of an OCI layout to ``output``, as :func:`pull_sif` does from a registry.

    It is a copy, never a hard link: signing a SIF, or adding to it, changes the file in place.
    """

    def fetch(partial: Path) -> None:
        hashed = hashlib.sha256()
        try:
            with partial.open("wb") as out:
                for data in file_source(blob)(0):
                    out.write(data)
                    hashed.update(data)
        except FileNotFoundError:
            raise ImageError(f"{blob} is missing", "build or publish it again") from None
        if f"sha256:{hashed.hexdigest()}" != layer.digest:
            partial.unlink()
            raise HashMismatch(
                f"{blob} is not {layer.digest} any more",
                "it was changed or damaged: build or publish it again",
            )

    return _place(layer, output, store, fetch)


def _place(layer: Descriptor, output: Path, store: Store, fetch: Callable[[Path], None]) -> bool:
    if output.is_dir():
        raise ImageError(f"{output} is a folder", "name the file that the SIF goes into")
    if store.verify(output, layer.digest):
        return False
    # Nodes of a job may pull into one shared folder at once, each with a cache of its own, and locks may not reach so far.
    mine = f".{socket.gethostname()}.part"
    partial = output.with_name(f".{output.name}.{store.path(layer.digest).name[:16]}{mine}")
    with space_errors(output.parent):
        output.parent.mkdir(parents=True, exist_ok=True)
        with _held(partial):
            if store.verify(output, layer.digest):
                partial.unlink()
                return False
            for other in output.parent.glob(f".{glob.escape(output.name)}.{'[0-9a-f]' * 16}.*.part"):
                with contextlib.suppress(OSError):
                    if other != partial and (
                        other.name.endswith(mine) or time.time() - other.stat().st_mtime > _STALE_S
                    ):
                        other.unlink()  # of another version, or forgotten
            fetch(partial)
            try:
                check_sif(partial)
            except ImageError:
                partial.unlink()
                raise
            partial.chmod(0o755)  # as Apptainer leaves it: a SIF can be run by its name
            partial.replace(output)
            store.mark_verified(output, layer.digest)
    return True


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Makes a file if it is not there, and holds its lock; another process of this host waits."""
    while True:
        with path.open("ab") as f:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(f, fcntl.LOCK_EX)
            try:
                ours = os.path.samestat(os.fstat(f.fileno()), path.stat())
            except FileNotFoundError:
                ours = False  # whoever held it has put it into its place
            if ours:
                yield
                return
