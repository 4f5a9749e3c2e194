"""Steps in docker and podman: a container is committed, and its topmost layer read back.

The engine's layer has other times and owners, and the engine's own mount points;
:mod:`builder.steps.changes` makes the same layer of it as of an overlay.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import IO

from builder.errors import ImageError
from builder.model import OCI_LAYER, Descriptor, Layer
from builder.run.base import RunOptions, require_oci
from builder.run.docker import DockerRunner
from builder.run.podman import PodmanRunner
from builder.steps.changes import Nodes, nodes_of_layer
from builder.steps.job import StepJob, check_step
from builder.store.files import sha256_file


def run_in_engine(runner: DockerRunner | PodmanRunner, job: StepJob, options: RunOptions) -> Nodes:
    """Run a step in a container engine and return its changes.

    Raises:
        ImageError: A command failed.
        RunnerError: The engine does not work.
    """
    archive = job.folder / "image.tar"
    image = require_oci(job.image, runner.name)
    done = runner.run_recorded(image, job.step.arguments, options, archive)
    check_step(done, job.step, job.output)
    top = top_layer(archive, len(image.layers), job.folder / "layer.tar")
    return {} if top is None else nodes_of_layer(top, job.work.store, job.folder / "files")


def top_layer(archive: Path, below: int, path: Path) -> Layer | None:
    """Copy the topmost layer of a saved image into a file; None if the step left no layer.

    Args:
        archive: what ``docker save`` or ``podman save`` wrote.
        below: how many layers the image had before.
        path: the new file.
    """
    try:
        with tarfile.open(archive) as tar:
            names = json.load(_member(tar, "manifest.json"))[0]["Layers"]
            if len(names) <= below:
                return None
            with path.open("wb") as out:
                shutil.copyfileobj(_member(tar, names[-1]), out)
    except (tarfile.TarError, KeyError, IndexError, ValueError, TypeError) as e:
        message = f"the engine saved an image that cannot be read: {e}"
        raise ImageError(message, "see its log") from None
    return Layer(Descriptor(OCI_LAYER, sha256_file(path), path.stat().st_size), "", path)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)  # follows links, which docker 20.10 writes for equal layers
    if found is None:
        raise KeyError(f"{name} is not a file")
    return found
