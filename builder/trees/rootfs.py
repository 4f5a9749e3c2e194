"""Unpacks layers into a folder (image-spec, layer.md). Everything in it belongs to this user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from builder.errors import ImageError
from builder.model import Image, Layer
from builder.oci.manifest import require_layers
from builder.store.blobs import Store
from builder.store.files import require_space, space_errors
from builder.store.temporary import temporary_beside
from builder.store.walk import remove_tree
from builder.trees.layer import read_layer
from builder.trees.member import DO_NOT_USE, Advance, counted
from builder.trees.rootfs_writer import RootfsWriter

#: How much larger a layer's files are than its blob, where their size is not known.
_UNPACKED_PER_BYTE = 3
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def unpack(
    image: Image,
    folder: Path,
    store: Store,
    *,
    layers: int | None = None,
    advance: Advance = int,
) -> None:
    """Unpacks the layers of an image, from the bottom up.

    The folder gets its name when everything is in it, so a folder that exists is complete. This user can
    read, change and remove what is in it; no file is setuid.

    Args:
        image: the image; all its layers are on this machine.
        folder: must not exist, or be empty.
        store: knows which blobs are verified.
        layers: how many layers, from the bottom up; None: all.
        advance: receives the bytes of each file that was unpacked.

    Raises:
        ImageError: a layer is damaged, unsafe or was never downloaded, or the folder is not empty.
        SpaceError: the disk has too little room.
    """
    require_layers(image, f"unpack into {folder}")
    wanted = image.layers[:layers]
    with new_tree(folder, unpacked_size(wanted)) as tree:
        for layer in wanted:
            _unpack_layer(layer, tree, store, advance)


def unpacked_size(layers: Iterable[Layer]) -> int:
    """About how many bytes the files of some layers have."""
    return sum(map(_size, layers))


def add_layer(layer: Layer, folder: Path, store: Store) -> None:
    """Unpacks one more layer into an unpacked image whose files belong to this user, see :func:`unpack`.

    A file that the layer replaces is written anew, so other hard links to it keep its content. An exception
    leaves the folder incomplete.

    Raises:
        ImageError, SpaceError: as for :func:`unpack`.
    """
    with space_errors(folder):
        require_space(folder, _size(layer), f"unpacking into {folder}")
        tree = RootfsWriter(str(folder))
        _unpack_layer(layer, tree, store, int)
        tree.finish()


def _size(layer: Layer) -> int:
    """About how many bytes a layer's files have."""
    return layer.unpacked or _UNPACKED_PER_BYTE * layer.descriptor.size


@contextmanager
def new_tree(folder: Path, size: int) -> Iterator[RootfsWriter]:
    """A writer for a new root file system.

    The folder gets its name when the ``with`` block ends without an error.

    Args:
        folder: must not exist, or be empty.
        size: about how many bytes will be written.

    Raises:
        ImageError: the folder is not empty.
        SpaceError: the disk has too little room.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ImageError(f"{folder} is not empty", "unpack into a new folder")
    folder = folder.absolute()
    with space_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder.parent, size, f"unpacking into {folder}")
        temporary = temporary_beside(folder)
        temporary.mkdir(mode=0o755)
        temporary.chmod(0o755)  # independent of the umask
        try:
            tree = RootfsWriter(str(temporary))
            yield tree
            tree.finish()
            temporary.replace(folder)
        except BaseException:
            remove_tree(temporary)
            raise


def _unpack_layer(layer: Layer, tree: RootfsWriter, store: Store, advance: Advance) -> None:
    tree.new_layer()
    try:
        with closing(read_layer(layer, store)) as members:
            for member, content in members:
                tree.add(member, counted(content, advance))
    except OSError as e:
        if e.errno in _DISK_FULL:
            raise  # space_errors() reports it
        name = os.fsdecode(e.filename or "?")
        raise ImageError(f"{layer.path}: cannot unpack {name}: {e.strerror}", DO_NOT_USE) from None
