"""A step and everything that its runner needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import ImageError
from builder.layers.entry import Entry
from builder.model import Compression, Image, SifImage
from builder.redact import redact
from builder.run.base import ImageConfig, Mount
from builder.run.process import Completed
from builder.run.task import TaskLog
from builder.text import visible
from builder.workspace import Workspace

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
    leave_out: Callable[[Entry], bool] | None = None
    """Which changes are not in the layer, in addition to those of every step; None: no others. It
    and mounts are no part of the key of :func:`builder.steps.run.cached_step`: who sets them has
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
    compression: Compression
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
