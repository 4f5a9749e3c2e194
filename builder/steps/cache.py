"""Layers of steps in the cache, by everything that a step depends on."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from builder.config.recipe import Compression
from builder.errors import FetchError
from builder.layers.cache import cache_key, cached_layer
from builder.layers.compress import codec_name
from builder.model import Image, Layer
from builder.progress import QUIET, Reporter
from builder.run.base import ImageConfig
from builder.settings import Settings
from builder.steps.run import StepRun, run_step
from builder.store.blobs import Store
from builder.store.files import sha256_file

#: Part of every key. Increase it when a step's environment or its layer's form changes.
FORMAT = 1


def cached_step(
    image: Image,
    step: StepRun,
    settings: Settings,
    store: Store,
    reporter: Reporter = QUIET,
    *,
    compression: Compression = "gzip",
) -> Layer:
    """Returns the layer of a step; runs the step only if it has not run with the same inputs.

    The inputs are the layers below, the variables, the commands, the network flag, and the content of mounts.
    For the arguments and errors see :func:`builder.steps.run.run_step`.

    Raises:
        FetchError: The step needs the network, and builder is offline.
    """
    key = step_key(image, step, settings, compression)

    def run() -> Layer:
        if step.network and settings.offline:
            raise FetchError(
                f"{step.where or 'a step'}: {step.name!r} needs the network, and builder is offline",
                "build once with a network; the cache then has the step's layer",
            )
        return run_step(image, step, settings, store, reporter, compression=compression)

    return cached_layer(store.folders.layers / f"step-{key}.json", store, run)


def step_key(image: Image, step: StepRun, settings: Settings, compression: Compression) -> str:
    """A hash of everything that a step's layer depends on."""
    return cache_key(
        {
            # with the digests, which are verified: a base may list diff_ids of another image's layers
            "below": [[layer.diff_id, layer.descriptor.digest] for layer in image.layers],
            "image_env": ImageConfig.of(image).env,
            "commands": step.commands,
            "env": dict(step.env),
            "network": step.network,
            "mounts": [[mount.target, _tree_digest(mount.source)] for mount in step.mounts],
            "title": step.name,
            "codec": codec_name(compression),
            "epoch": settings.epoch,
            "format": FORMAT,
        }
    )


def _tree_digest(path: Path) -> str:
    """A hash of names, modes and contents of a file or folder."""
    return cache_key(_described(path))


def _described(path: Path) -> Any:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return ["link", os.fsencode(os.readlink(path)).hex()]  # noqa: PTH115  as it is written
    if stat.S_ISDIR(info.st_mode):
        names = sorted(os.fsencode(child.name) for child in path.iterdir())
        return [[name.hex(), _described(path / os.fsdecode(name))] for name in names]
    if stat.S_ISREG(info.st_mode):
        return [stat.S_IMODE(info.st_mode), sha256_file(path)]
    return hashlib.sha256(str(info.st_mode).encode()).hexdigest()
