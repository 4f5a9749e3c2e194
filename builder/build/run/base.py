"""The interface of all runners, the options of a run, and an image's config as a command line."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from builder.core.errors import RunnerError
from builder.core.model import Image, SifImage
from builder.core.workspace import Workspace
from builder.formats.oci.image import config_environment, host_architecture
from builder.formats.oci.manifest import parse_config
from builder.formats.qemu import cannot_run, is_registered, registration_hint
from builder.formats.sif.read import read_sif
from builder.lock.config.site import GpuVendor

from .process import Completed, Words, execute

#: Size of /dev/shm in docker and podman containers, whose default of 64 MB is too small for data
#: loaders. Memory is used only for what is written there.
SHM_SIZE = "1g"
#: The file of docker and podman in :attr:`RunOptions.changes`.
CHANGED_IMAGE = "image.tar"

Network = Literal["none", "host"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that the container sees."""

    source: Path
    """Path on the host."""
    target: str
    """Absolute path in the container."""
    readonly: bool = True

    def check(self, forbidden: str = "") -> None:
        """Check that the source exists and the target is an absolute path.

        Args:
            forbidden: Characters that the runner's command line cannot pass in a path.

        Raises:
            RunnerError: The mount is not possible; the message names its path.
        """
        source, target = self.source, self.target
        if not source.exists():
            message = f"{source} does not exist and cannot be mounted at {target}"
            raise RunnerError(message, "correct the path")

        if not target.startswith("/") or ".." in target.split("/") or not target.strip("/"):
            message = f"{target!r} is not an absolute path inside the image"
            raise RunnerError(message, "start it at the root: /data")

        bad = "".join(sorted(set(forbidden) & set(f"{source}{target}")))
        if bad:
            message = f"{source} cannot be mounted at {target}: {bad!r} in the path"
            raise RunnerError(message, "rename the file or folder")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How :meth:`Runner.run` runs a command; the defaults are those of the image."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to the image's; they take precedence."""
    mounts: Sequence[Mount] = ()
    """Files and folders of the host, in addition to what the runner itself mounts."""
    workdir: str | None = None
    """Working directory; None is the image's."""
    entrypoint: Sequence[str] | None = None
    """Replaces the image's entry point; None is the image's, empty is no entry point."""
    gpu: GpuVendor = "none"
    """Gives the container the host's GPUs of this vendor; no error if there are none."""
    network: Network = "none"
    keep_root: bool = False
    """The runners userns and apptainer, where builder runs as root: the container's root is the
    host's, and can write what is mounted. False: it is a user of the host without rights. docker
    and podman ignore it.
    """
    timeout_s: float | None = None
    """Seconds after which the command is killed, without the time to load the image; None is no
    limit.
    """
    capture: bool = True
    """False connects the command to this process's own input and output; the result then has no
    output.
    """
    changes: Path | None = None
    """An empty folder on a local file system, which receives what the command changes; None: it is
    lost. Of docker and podman: :data:`CHANGED_IMAGE`, the image with a layer on top (``docker
    save``), if the command succeeds. Of userns: ``upper``, the upper folder of an
    overlay: whiteouts are character devices 0/0, and the attribute ``user.overlay.opaque`` marks
    opaque folders; the command's root can do what a package's script does as root, see
    :data:`builder.build.run.confine.EMULATED_CALLS`. apptainer ignores it."""
    on_line: Callable[[str], None] | None = None
    """Receives each line of standard error as soon as it is written, from another thread. Only with
    ``capture``."""

    def execute(
        self, command: Words, env: Mapping[str, str] | None, pass_fds: Sequence[int] = ()
    ) -> Completed:
        """Run a program of the host that starts the container, see :func:`.process.execute`."""
        return execute(
            command,
            env=env,
            timeout_s=self.timeout_s,
            capture=self.capture,
            pass_fds=pass_fds,
            on_line=self.on_line,
        )


DEFAULT_OPTIONS = RunOptions()


class Runner(ABC):
    """One way to run an image on this host."""

    name: ClassVar[str]

    def __init__(self, work: Workspace) -> None:
        self._work = work

    @abstractmethod
    def available(self) -> str | None:
        """Return None if the runner works on this host for this user, else the reason."""

    @abstractmethod
    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        """Run a command in a temporary container of the image; remove the container afterwards.

        Args:
            image: An image whose layers are all on this machine. The runner loads or unpacks it if
                needed. apptainer runs a SIF directly, userns unpacks it, docker and podman refuse
                it.
            command: Appended to the entry point. Empty: the image's own command.
            options: Variables, mounts, GPUs, time limit and so on.

        Raises:
            RunnerError: The container or the command cannot be started, or the runner does not
                support SIFs.
            ImageError: The image cannot be loaded or unpacked.
        """


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's config (image-spec, config.md) that a runner needs."""

    env: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    workdir: str
    architecture: str = ""
    """The OCI's name of the processor: ``arm64``; empty if the config does not tell it."""

    @classmethod
    def of(cls, image: Image | SifImage) -> ImageConfig:
        """Read the config of an OCI image or a SIF."""
        whole = image_config(image)
        config = whole.get("config") or {}
        return cls(
            config_environment(whole),
            list(config.get("Entrypoint") or []),
            list(config.get("Cmd") or []),
            config.get("WorkingDir") or "/",
            whole.get("architecture") or "",
        )

    def arguments(self, command: Sequence[str], entrypoint: Sequence[str] | None) -> list[str]:
        """Return the complete command line: another entry point drops the image's own command.

        Raises:
            RunnerError: There is nothing to run.
        """
        default_command = self.command if entrypoint is None else []
        first = self.entrypoint if entrypoint is None else entrypoint
        words = [*first, *(command or default_command)]
        if not words:
            message = "the image has neither entry point nor command"
            raise RunnerError(message, "pass the command to run")
        return words

    def require_registered(self, runner: str) -> None:
        """Check that this host starts programs for the image's processor, itself or by a qemu.

        Raises:
            RunnerError: It does not, and the engine would report "exec format error".
        """
        architecture = self.architecture
        if architecture in ("", host_architecture()) or is_registered(architecture):
            return
        raise RunnerError(
            f"{runner}: {cannot_run(architecture)}, and no qemu is registered for its programs",
            f"{registration_hint(architecture)}; "
            "the runner userns registers qemu itself (Linux 6.7 and later)",
        )


def image_config(image: Image | SifImage) -> dict[str, Any]:
    """Return the config of an OCI image or a SIF."""
    if isinstance(image, SifImage):
        return read_sif(image.path).config()
    return parse_config(image.config, image.digest)


def require_oci(image: Image | SifImage, runner: str) -> Image:
    """Return the image if it is an OCI image.

    Raises:
        RunnerError: It is a SIF.
    """
    if isinstance(image, SifImage):
        hint = "use --runner apptainer or --runner userns, or build the target with format: oci"
        raise RunnerError(f"{runner} does not run SIFs, and {image.path} is one", hint)
    return image
