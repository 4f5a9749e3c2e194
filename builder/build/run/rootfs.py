"""Unpacked images, OCI and SIF, in the cache: one folder per image and user, complete or absent.

So are the layers of OCI images, each in its own folder. What images have in common is unpacked
once: the files of an image are hard links to those of its layers. Containers never write into the
tree, so links are safe.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from builder.core.model import Image, Layer, SifImage
from builder.core.progress import Reporter, working
from builder.core.store.blobs import Store
from builder.core.store.files import mark_used, require_space
from builder.core.store.folders import CacheFolders
from builder.core.store.temporary import temporary_beside
from builder.core.store.unpacked import hold, image_folder, keep_last, layer_folder, open_used
from builder.core.store.walk import remove_tree
from builder.core.workspace import Workspace
from builder.formats.oci.manifest import require_layers
from builder.formats.sif.read import read_sif
from builder.formats.trees.rootfs import unpack_layer, unpacked_size, unpacked_source, write_tree
from builder.formats.trees.sources import Source

from .base import image_config
from .identity import Identity

log = logging.getLogger(__name__)

_TARGET_LABEL = "org.builder.target"
_TASK = "unpacking the image (once)"


def cached_rootfs(
    image: Image | SifImage, work: Workspace, *, owner: Identity | None = None
) -> Path:
    """Return the root file system of an image, unpacked on first use. All files belong to one user.

    It stays in the cache until this process ends. Older images of the target are removed when
    another one is unpacked, with the layers that only they have, see
    :mod:`builder.core.store.unpacked`.

    Args:
        image: An image or a SIF, with all layers on this machine.
        owner: Who the files belong to; another than this user requires root. None is this user.

    Raises:
        ImageError: A layer or partition is damaged or not on this machine.
        SpaceError: The disk is too full.
        RunnerError: The file system does not let root change the owner.
    """
    user = owner or Identity(os.getuid(), os.getgid())
    rootfs, target = CacheFolders(work.settings.cache).rootfs, _target(image)
    layers = () if isinstance(image, SifImage) else image.layers
    digests = [layer.descriptor.digest for layer in layers] or [image.digest]
    folder = image_folder(rootfs, target, digests, user.uid)
    while not hold(folder):
        with work.store.lock(f"rootfs {target} {user.uid}"):
            if not folder.exists():  # another process may have unpacked it meanwhile
                log.info("unpacking %s into %s", image.digest, folder)
                work.store.sweep(rootfs)
                _Unpacking(rootfs, work.store, user, work.reporter).unpack(image, folder)
            hold(folder)
            keep_last(rootfs, target, user.uid)
    for digest in digests:  # its layers are used as long as the image is
        mark_used(layer_folder(rootfs, digest, user.uid))
    return folder


def _target(image: Image | SifImage) -> str:
    """Return the target of an image, by its label; ``other`` if it has none."""
    labels = (image_config(image).get("config") or {}).get("Labels") or {}
    target = str(labels.get(_TARGET_LABEL, ""))
    return target if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", target) else "other"


class _Unpacking:
    """Unpacks images.

    Args:
        rootfs: the folder of all unpacked images.
        store: the blobs.
        owner: who the files will belong to.
        reporter: receives progress.
    """

    def __init__(self, rootfs: Path, store: Store, owner: Identity, reporter: Reporter) -> None:
        self._rootfs = rootfs
        self._store = store
        self._owner = owner
        self._reporter = reporter
        self._advance = functools.partial(reporter.advance, _TASK)

    def unpack(self, image: Image | SifImage, folder: Path) -> None:
        """Unpack an image into its folder."""
        if isinstance(image, SifImage):
            self._require_space(3 * image.size)
            with working(self._reporter, _TASK), self._new_folder(folder) as temporary:
                write_tree(read_sif(image.path).sources(), temporary, self._advance)
            return
        require_layers(image, f"unpack into {folder}")
        size = unpacked_size(layer for layer in image.layers if not self._folder(layer).exists())
        self._require_space(size)
        with working(self._reporter, _TASK, size), contextlib.ExitStack() as used:
            sources = [self._source(layer, used) for layer in image.layers]
            with self._new_folder(folder) as temporary:
                write_tree(sources, temporary)

    def _require_space(self, size: int) -> None:
        require_space(self._rootfs, size, f"unpacking into {self._rootfs}")

    def _folder(self, layer: Layer) -> Path:
        return layer_folder(self._rootfs, layer.descriptor.digest, self._owner.uid)

    def _source(self, layer: Layer, used: contextlib.ExitStack) -> Source:
        """Unpack a layer that the cache does not have; it stays there until ``used`` is closed."""
        folder = self._folder(layer)
        while (fd := open_used(folder)) is None:
            with self._store.lock(f"rootfs {folder.name}"):
                if not folder.exists():
                    with self._new_folder(folder) as temporary:
                        unpack_layer(layer, temporary, self._store, self._advance)
        used.callback(os.close, fd)
        return unpacked_source(folder)

    @contextlib.contextmanager
    def _new_folder(self, folder: Path) -> Iterator[Path]:
        """Yield a temporary name for a folder; at the end it gets its owner and its name.

        Where locks do not work, another process may have unpacked the same meanwhile: its folder
        stays.
        """
        temporary = temporary_beside(folder)
        try:
            yield temporary
            # with the image's time it would look like a tree of a killed process
            os.utime(temporary)
            self._owner.give(temporary)
            try:
                temporary.replace(folder)
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        finally:
            if temporary.exists():
                remove_tree(temporary)
