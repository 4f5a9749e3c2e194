"""Unpacked images, OCI and SIF, in the cache: one folder per image digest and user, complete or absent.

The topmost layer of an image that builder made is small: it has the recipe's files, such as a training
script. An image that differs from one before in this layer only is not unpacked as a whole: all other files
are hard links. Containers never write into the tree, so links are safe.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from builder.model import Image, Layer, SifImage
from builder.progress import QUIET, Reporter, working
from builder.run.identity import Identity
from builder.settings import Settings
from builder.sif.read import read_sif
from builder.store.blobs import Store
from builder.store.folders import CacheFolders
from builder.store.temporary import temporary_beside
from builder.store.unpacked import TreeName, hold, keep_last
from builder.store.walk import remove_tree
from builder.trees.rootfs import tree_source, unpack, unpacked_size, write_tree
from builder.trees.sources import layer_source

_TARGET_LABEL = "org.builder.target"


def cached_rootfs(
    image: Image | SifImage,
    settings: Settings,
    store: Store,
    reporter: Reporter = QUIET,
    *,
    owner: Identity | None = None,
) -> Path:
    """Returns the root file system of an image, unpacked on first use. All files belong to one user.

    It stays in the cache until this process ends. Older images of the target are removed when another one is
    unpacked, see :mod:`builder.store.unpacked`.

    Args:
        image: An image or a SIF, with all layers on this machine.
        settings: The cache.
        store: The blobs; its lock prevents two processes from unpacking the same image.
        reporter: Receives a note when the image is unpacked.
        owner: Who the files belong to; another than this user requires root. None is this user.

    Raises:
        ImageError: A layer or partition is damaged or not on this machine.
        SpaceError: The disk is too full.
        RunnerError: The file system does not let root change the owner.
    """
    user = owner or Identity(os.getuid(), os.getgid())
    trees = _Trees(image, CacheFolders(settings.cache).rootfs, store, user, reporter)
    return trees.held(trees.whole, trees.unpack_image)


def cached_lower(
    image: Image | SifImage, settings: Settings, store: Store, reporter: Reporter = QUIET, *, owner: Identity
) -> Path:
    """Like :func:`cached_rootfs`, for an image that others are built on.

    The trees of those, and of the image with one more layer, are hard links to the files of this one. So a
    chain of build steps unpacks the packages once.
    """
    if isinstance(image, SifImage):
        return cached_rootfs(image, settings, store, reporter, owner=owner)
    trees = _Trees(image, CacheFolders(settings.cache).rootfs, store, owner, reporter)
    return trees.held(replace(trees.below, lower=_layers_key(image.layers)), trees.unpack_over)


class _Trees:
    """The unpacked trees of an image.

    Args:
        image: the image; one without a target's label belongs to the target ``other``.
        rootfs: the folder of all trees.
        store: the blobs.
        owner: who the files belong to.
        reporter: receives progress.
    """

    def __init__(
        self, image: Image | SifImage, rootfs: Path, store: Store, owner: Identity, reporter: Reporter
    ) -> None:
        config = read_sif(image.path).config() if isinstance(image, SifImage) else json.loads(image.config)
        labels = (config.get("config") or {}).get("Labels") or {}
        target = str(labels.get(_TARGET_LABEL, ""))
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", target):
            target = "other"
        self._layers = () if isinstance(image, SifImage) else image.layers
        self.below = TreeName(target, _layers_key(self._layers[:-1]), owner.uid)
        """The layers below the topmost one."""
        self.whole = replace(self.below, image=image.digest.partition(":")[2][:24])
        self._image = image
        self._rootfs = rootfs
        self._store = store
        self._owner = owner
        self._reporter = reporter

    def held(self, name: TreeName, make: Callable[[Path], None]) -> Path:
        """Return a tree that stays until this process ends, and make it if it is not in the cache."""
        folder = self._rootfs / str(name)
        while not hold(folder):
            with self._store.lock(f"rootfs {name.target} {name.uid}"):
                if not folder.exists():  # another process may have unpacked it meanwhile
                    self._store.sweep(self._rootfs)
                    make(folder)
                hold(folder)
                keep_last(self._rootfs, name.target, name.uid)
        return folder

    def unpack_image(self, folder: Path) -> None:
        """Unpacks the image into its folder: over the layers below its topmost, where that is possible."""
        below = self._rootfs / str(self.below)
        while self.below.target != "other" and len(self._layers) > 1 and not hold(below):
            self._unpack(below, layers=len(self._layers) - 1)
        self.unpack_over(folder)

    def unpack_over(self, folder: Path) -> None:
        """Unpacks the topmost layer over hard links to a tree of those below, or all if there is none."""
        below = self._rootfs / str(self.below)
        if not self._layers or not hold(below):
            self._unpack(folder)
            return
        top = self._layers[-1]
        with self._new_folder(folder) as temporary:
            write_tree([tree_source(below), layer_source(top, self._store)], temporary, unpacked_size([top]))

    def _unpack(self, folder: Path, layers: int | None = None) -> None:
        """Unpacks the image, or its lowest ``layers``."""
        task, image = "unpacking the image (once)", self._image
        total = None if isinstance(image, SifImage) else unpacked_size(image.layers[:layers])
        advance = functools.partial(self._reporter.advance, task)
        with self._new_folder(folder) as temporary, working(self._reporter, task, total):
            if isinstance(image, SifImage):
                write_tree(read_sif(image.path).sources(), temporary, 3 * image.size, advance)
            else:
                unpack(image, temporary, self._store, layers=layers, advance=advance)

    @contextlib.contextmanager
    def _new_folder(self, folder: Path) -> Iterator[Path]:
        """Return a temporary name for a tree, which gets its owner and its name at the end of the block.

        Where locks do not work, another process may have unpacked the same image meanwhile: its tree stays.
        """
        temporary = temporary_beside(folder)
        try:
            yield temporary
            os.utime(temporary)  # else it has the image's time, and looks like a tree that was left behind
            self._owner.give(temporary)
            try:
                temporary.replace(folder)
            except OSError as e:
                if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        finally:
            if temporary.exists():
                remove_tree(temporary)


def _layers_key(layers: Sequence[Layer]) -> str:
    """16 hex digits of layers, by the digests of the blobs, which are verified.

    An image may list diff_ids of another one's layers.
    """
    digests = [layer.descriptor.digest for layer in layers]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
