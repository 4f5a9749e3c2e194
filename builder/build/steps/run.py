"""Runs the commands of a step in an image, and makes one layer of what they change.

The user-namespace runner comes first: an overlay of the unpacked image and a folder on disk, which
is the difference (:mod:`builder.build.steps.changes`). Where the kernel refuses it, docker or
podman runs a container and commits it, and its topmost layer is read back. The engine's layer has
other times and owners, and the engine's own mount points; :mod:`builder.build.steps.changes` makes
the same layer of it.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.build.bases.archive import choose_docker_image, open_archive
from builder.build.run.base import (
    CHANGED_IMAGE,
    ImageConfig,
    Mount,
    Runner,
    RunOptions,
    require_oci,
)
from builder.build.run.identity import container_root
from builder.build.run.jail import OVERLAY_ON_DISK
from builder.build.run.process import Completed
from builder.build.run.rootfs import cached_rootfs
from builder.build.run.select import find_runner
from builder.build.run.storage import EngineRunner
from builder.build.run.task import TaskLog
from builder.core.errors import FetchError, ImageError, LayerError, RunnerError
from builder.core.model import OCI_LAYER, Compression, Descriptor, Image, Layer, SifImage
from builder.core.progress import working
from builder.core.redact import redact
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file, space_errors
from builder.core.store.temporary import temporary_folder
from builder.core.text import human_bytes, visible
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.cache import cache_key, cached_layer
from builder.formats.layers.compress import codec_name
from builder.formats.layers.entry import Entry

from .changes import Changes, Nodes, nodes_of_layer, nodes_of_upper

log = logging.getLogger(__name__)

#: Part of every key. Increase it when a step's environment or its layer's form changes.
FORMAT = 2
#: Paths that a note names.
_SHOWN = 5
#: Lines of a failed step that the message shows.
SHOWN_LINES = 30
#: Characters of a command in titles and progress.
_TITLE = 60
#: Runs each argument in a new shell, and prints it before; all output goes to stderr, in order.
_SCRIPT = (
    'exec 1>&2; for command do printf "+ %s\\n" "$command"; /bin/sh -c "$command" || exit; done'
)
_HOME = "/root"


@dataclass(frozen=True)
class StepRun:
    """The commands of a step, and their surroundings."""

    commands: tuple[str, ...]
    """Shell commands, in order. The first one that fails ends the step."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the image's; they are not in the image."""
    network: bool = False
    """Whether the commands reach the host's network."""
    mounts: Sequence[Mount] = ()
    """Files and folders of the host; they are not in the layer."""
    title: str = ""
    """The layer's name in the image's history; empty: the first command."""
    where: str = ""
    """File, line and key of the step, for messages."""
    compression: Compression = "gzip"
    """Of the layer."""
    leave_out: Callable[[Entry], bool] | None = None
    """Which changes are not in the layer, in addition to those of every step; None: no others. It
    and mounts are no part of the key of :func:`cached_step`: who sets them has
    another cache."""

    @property
    def name(self) -> str:
        """The title, or the first command, as one short line without credentials."""
        text = " ".join(redact(self.title or next(iter(self.commands), "")).split())
        return visible(text if len(text) <= _TITLE else f"{text[: _TITLE - 3]}...")

    @property
    def arguments(self) -> list[str]:
        """The command line that runs the commands in the image."""
        return ["/bin/sh", "-c", _SCRIPT, "step", *self.commands]


@dataclass(frozen=True)
class StepJob:
    """One run of a step."""

    image: Image | SifImage
    step: StepRun
    folder: Path
    """An empty folder, which is removed after the run."""
    work: Workspace
    output: TaskLog

    @property
    def env(self) -> dict[str, str]:
        """The complete environment of the commands.

        Files of a layer have another time than in the step. So Python writes no bytecode that
        depends on it.
        """
        own = {
            "HOME": _HOME,
            "SOURCE_DATE_EPOCH": str(self.work.settings.epoch),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return {**own, **ImageConfig.of(self.image).env, **self.step.env}


def cached_step(image: Image, step: StepRun, work: Workspace) -> Layer:
    """Return the layer of a step; run the step only if it has not run with the same inputs.

    The inputs are the layers below, the variables, the commands and the network flag. For the
    arguments and errors see :func:`run_step`.

    Raises:
        FetchError: The step needs the network, and builder is offline.
    """
    key = step_key(image, step, work.settings)
    record = work.store.folders.layers / f"step-{key}.json"

    def run() -> Layer:
        log.info("step %s runs: the cache has no layer of these inputs", step.name)
        if step.network and work.settings.offline:
            raise FetchError(
                f"{step.where or 'a step'}: {step.name!r} needs the network, and builder is offline",
                "build once with a network; the cache then has the step's layer",
            )
        return run_step(image, step, work)

    layer = cached_layer(record, work.store, run)
    log.info("step %s: layer %s", step.name, layer.descriptor.digest)
    return layer


def step_key(image: Image, step: StepRun, settings: Settings) -> str:
    """Return a hash of everything that a step's layer depends on."""
    return cache_key(
        {
            # with the digests, which are verified: a base may list diff_ids of another image's
            # layers
            "below": [[layer.diff_id, layer.descriptor.digest] for layer in image.layers],
            "image_env": ImageConfig.of(image).env,
            "commands": step.commands,
            "env": dict(step.env),
            "network": step.network,
            "title": step.name,
            "codec": codec_name(step.compression),
            "epoch": settings.epoch,
            "format": FORMAT,
        }
    )


def run_step(
    image: Image | SifImage, step: StepRun, work: Workspace, *, runner: str | None = None
) -> Layer:
    """Run a step and return the layer of its changes. A step that fails leaves nothing.

    Args:
        image: the complete image that the step runs in (a SIF only with userns); its layers
            are on this machine.
        step: commands, variables, mounts, and the compression of the layer.
        runner: ``userns``, ``docker``, ``podman`` or ``podman-hpc``; None: the first one that
            works.

    Raises:
        ImageError: A command failed; the message has its last lines and the file with all of them.
        LayerError: It left a path that is too long or too deep, or no text.
        RunnerError: No runner works, or the container could not start.
        SpaceError: The disk is full.
    """
    for mount in step.mounts:
        mount.check()
    found = find_runner(work, runner, without=("apptainer",), image=image)
    task = f"step {step.name}"
    started = time.monotonic()
    with (
        space_errors(work.settings.tmpdir),
        TaskLog(work.settings, task, work.reporter, "step") as output,
        temporary_folder(work.settings.tmpdir, 0o700) as folder,
        working(work.reporter, task),
    ):
        job = StepJob(image, step, folder, work, output)
        layer = _layer(job, found)
    seconds = time.monotonic() - started
    work.reporter.note(f"{task}: {human_bytes(layer.descriptor.size)} in {seconds:.1f} s")
    return layer


def _layer(job: StepJob, runner: Runner) -> Layer:
    """Run a step and return the layer of the difference to the unpacked image."""
    step = job.step
    owner = container_root(keep_root=False)
    rootfs = cached_rootfs(job.image, job.work, owner=owner)
    nodes = _run(job, runner)
    targets = [job.env["HOME"], *(mount.target for mount in step.mounts)]
    changes = Changes(nodes, rootfs, targets)
    title = f"step: {step.name}"
    entries: Iterable[Entry] = changes.entries()
    if step.leave_out is not None:
        entries = itertools.filterfalse(step.leave_out, entries)
    try:
        layer = make_layer(entries, title, job.work, compression=step.compression)
    except LayerError as e:
        message = f"the step left what no layer can have: {e.message}"
        raise LayerError(message, "rename it in the step, or delete it there") from None
    if changes.skipped:
        more = " ..." if len(changes.skipped) > _SHOWN else ""
        job.work.reporter.note(
            f"step {step.name}: left out, because layers hold no devices, sockets and pipes: "
            f"{', '.join(changes.skipped[:_SHOWN])}{more}"
        )
    return layer


def _run(job: StepJob, runner: Runner) -> Nodes:
    """Run a step and return what it changed.

    Raises:
        ImageError: A command failed.
        RunnerError: The runner does not work.
    """
    step, folder = job.step, job.folder
    options = RunOptions(
        env=job.env,
        mounts=step.mounts,
        workdir="/",
        entrypoint=(),
        network="host" if step.network else "none",
        changes=folder,
        on_line=job.output.add,
    )
    try:
        done = runner.run(job.image, step.arguments, options)
    except RunnerError as e:
        if OVERLAY_ON_DISK not in e.message:
            raise
        needed = f"Linux 5.11 or later and a local file system at {job.work.settings.tmpdir}"
        raise RunnerError(
            f"{e.message}: a step needs {needed}",
            "set BUILDER_TMPDIR to a folder on a local disk (in a container: of a volume), "
            "or install docker or podman",
        ) from None
    check_step(done, step, job.output)
    if not isinstance(runner, EngineRunner):
        return nodes_of_upper(folder / "upper")
    below, store = require_oci(job.image, runner.name).layers, job.work.store
    top = _top_layer(folder / CHANGED_IMAGE, len(below), folder / "layer.tar", store)
    return {} if top is None else nodes_of_layer(top, store, folder / "files")


def check_step(done: Completed, step: StepRun, output: TaskLog) -> None:
    """Raise ImageError if the step failed."""
    if done.returncode == 0:
        return
    where = f"{step.where}: " if step.where else ""
    commands = [line for line in output.lines if line.startswith("+ ")]
    failed = f" at {commands[-1][2:]!r}" if commands else ""
    raise ImageError(
        f"{where}the step {step.name!r} failed with exit code {done.returncode}{failed}:\n"
        f"{output.tail(SHOWN_LINES)}",
        f"all lines of the step: {output.path}",
    )


def _top_layer(archive: Path, below: int, path: Path, store: Store) -> Layer | None:
    """Copy the topmost layer of a saved image into a file; None if the step left no layer.

    Args:
        archive: what ``docker save`` or ``podman save`` wrote.
        below: how many layers the image had before.
        path: the new file.
        store: has a folder for temporary files.
    """
    try:
        with open_archive(archive, store) as saved:
            names = choose_docker_image(saved, None)["Layers"]
            if len(names) <= below:
                return None
            with path.open("wb") as out:
                out.writelines(saved.chunks(names[-1]))
    except ImageError as e:
        message = f"the engine saved an image that cannot be read: {e.message}"
        raise ImageError(message, "see its log") from None
    return Layer(Descriptor(OCI_LAYER, sha256_file(path), path.stat().st_size), "", path)
