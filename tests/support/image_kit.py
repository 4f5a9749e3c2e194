"""Tiny images for tests. Layers consist of ``tarfile`` members, so that hostile ones are possible too."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from builder.build.bases.image import BaseImage
from builder.build.bases.pack import pack_tar
from builder.build.image.config import make_image
from builder.core.model import OCI_LAYER, Descriptor, Image, Layer, Lock
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.lock.config.recipe import Recipe

EPOCH = 315532800


def settings(folder: Path, **more: Any) -> Settings:
    """Settings with their own cache."""
    return Settings(cache=folder / "cache", tmpdir=folder / "cache" / "tmp", jobs=2, **more)


def member(
    name: str, data: bytes | None = None, *, kind: bytes | None = None, mode: int = 0o644, target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    """A tar member; a directory when the name ends with a slash, a symlink when it has a target."""
    info = tarfile.TarInfo(name.rstrip("/") if name != "/" else name)
    if kind:
        info.type = kind
    elif name.endswith("/"):
        info.type = tarfile.DIRTYPE
    else:
        info.type = tarfile.SYMTYPE if target else tarfile.REGTYPE
    info.mode, info.linkname, info.mtime = mode, target, EPOCH
    info.size = len(data or b"") if info.type == tarfile.REGTYPE else 0
    return info, data or b""


def tar_bytes(members: Iterable[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """An uncompressed tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def layer(store: Store, *members: tuple[tarfile.TarInfo, bytes], title: str = "test") -> Layer:
    """A gzip layer in the store."""
    return pack_tar([tar_bytes(members)], store, 2, title)


def plain_layer(store: Store, tar: bytes) -> Layer:
    """A layer in the store that is a tar without compression."""
    digest = store.add(tar)
    return Layer(Descriptor(OCI_LAYER, digest, len(tar)), digest, store.path(digest))


def base(
    *layers: Layer, env: Iterable[str] = (), reference: str = "debian:bookworm", **config: Any
) -> BaseImage:
    """A base image of layers. ``config`` is added to the inner part of its config."""
    inner = {"Env": list(env), **config}
    data = {
        "architecture": "amd64",
        "os": "linux",
        "config": inner,
        "rootfs": {"type": "layers", "diff_ids": [x.diff_id for x in layers]},
    }
    return BaseImage(reference, "sha256:" + "b" * 64, data, layers)


def recipe(folder: Path = Path(), **more: Any) -> Recipe:
    """A recipe with default values, except for ``more``."""
    values = {
        "name": "tiny",
        "base": "debian:bookworm",
        "environment": "environments/tiny.yml",
        "source": folder / "recipes/tiny.yaml",
    }
    return Recipe.model_validate({**values, "root": folder, **more})


def image_above(below: BaseImage, layers: Sequence[Layer], **more: Any) -> Image:
    """An image of layers above a base image. ``more`` are values of the recipe."""
    made = recipe(**more)
    lock = Lock((), (made.platform,))
    return make_image(below, layers, recipe=made, lock=lock, env={}, annotations={}, epoch=EPOCH)


def image(store: Store, *layers: Layer, **more: Any) -> Image:
    """An image of one base layer and these layers. ``more`` are values of the recipe."""
    bottom = layer(store, member("etc/"), member("etc/base", b"base\n"), title="bottom")
    return image_above(base(bottom), layers, **more)
