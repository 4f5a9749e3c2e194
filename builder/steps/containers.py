"""Steps in docker and podman: a container is committed, and its topmost layer read back.

The engine's layer has other times and owners, and the engine's own mount points; :mod:`builder.steps.changes`
makes the same layer of it as of an overlay.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import IO

from builder.errors import ImageError, RunnerError
from builder.model import OCI_LAYER, Descriptor, Layer
from builder.run.base import RunOptions, require_oci
from builder.run.docker import DockerRunner, docker_problem
from builder.run.podman import PodmanHpcRunner, PodmanRunner
from builder.steps.changes import Nodes, nodes_of_layer
from builder.steps.job import Job
from builder.store.files import sha256_file

_PODMAN: dict[str, type[PodmanRunner]] = {"podman": PodmanRunner, "podman-hpc": PodmanHpcRunner}
ENGINES = ("docker", *_PODMAN)


def first_engine(problem: str) -> str:
    """Returns the first engine that works; ``problem``: why the user-namespace runner does not.

    Raises:
        RunnerError: None works.
    """
    reasons = [f"userns: {problem}"]
    docker = docker_problem()
    if docker is None:
        return "docker"
    reasons.append(f"docker: {docker}")
    for name in _PODMAN:
        if shutil.which(name):
            return name
        reasons.append(f"{name}: not installed")
    raise RunnerError(
        "a build step needs a runner, and none works on this host:\n  " + "\n  ".join(reasons),
        "install or fix one of them; builder doctor shows the state of each",
    )


def run_in_engine(name: str, job: Job, options: RunOptions) -> Nodes:
    """Runs a step in a container engine and returns what it left.

    Raises:
        ImageError: A command failed.
        RunnerError: The engine does not work, or there is none of that name.
    """
    runner: DockerRunner | PodmanRunner
    if name == "docker":
        runner = DockerRunner(job.settings, job.store, job.reporter)
    elif name in _PODMAN:
        runner = _PODMAN[name](job.settings, job.store, job.reporter)
    else:
        raise RunnerError(f"{name} runs no build steps", f"use one of userns, {', '.join(ENGINES)}")
    if (problem := runner.available()) is not None:
        raise RunnerError(
            f"{name} does not work here: {problem}", "builder doctor shows the state of runners"
        )
    archive = job.folder / "image.tar"
    image = require_oci(job.image, name)
    done = runner.run_recorded(image, job.step.arguments, options, archive)
    job.output.check(done, job.step)
    top = top_layer(archive, len(image.layers), job.folder / "layer.tar")
    return {} if top is None else nodes_of_layer(top, job.store, job.folder / "files")


def top_layer(archive: Path, below: int, path: Path) -> Layer | None:
    """Copies the topmost layer of a saved image into a file; None if the step left no layer.

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
        raise ImageError(f"the engine saved an image that cannot be read: {e}", "see its log") from None
    return Layer(Descriptor(OCI_LAYER, sha256_file(path), path.stat().st_size), "", path)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)  # follows links, which docker 20.10 writes for equal layers
    if found is None:
        raise KeyError(f"{name} is not a file")
    return found
