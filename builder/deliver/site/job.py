"""Planned jobs as plain data. Templates turn them into scripts.

Texts can be :class:`~builder.deliver.site.shell.ShellText`, with variables of the machine that runs
the script.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.formats.oci.reference import local_name
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import Launcher

from .containers import Invocation
from .shell import Verbatim

#: A tag of a repository, with the registry's host.
_TAG = re.compile(r"([\w-]*[.:][\w.:-]*/[\w./-]+)(:[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Resources:
    """The size of a job."""

    nodes: int
    gpus: int
    """Per node."""
    tasks: int
    """Processes that srun starts per node."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The image of a job."""

    reference: str
    """A reference or a path; empty for ``userns``, which finds the image by the target."""
    is_file: bool
    """Whether the reference is a SIF or squashfs, whose existence the script checks."""
    engine: str = ""
    """The engine whose storage must have the image, such as ``podman-hpc``: the script pulls a tag,
    and anything else if it is missing. Empty: none."""
    migrates: bool = False
    """Whether the engine has a storage that all nodes see, and pulls into it: podman-hpc."""
    image_id: str = ""
    """Digest of the image's config, if it is known; of ``userns`` that of the image."""

    @property
    def movable(self) -> str:
        """The repository of a tag, which can move; empty for a digest.

        It is empty without a registry's host, too: the image may be one of this machine, and in
        Docker Hub its name belongs to somebody else.
        """
        tag = None if self.image_id else _TAG.fullmatch(self.reference)
        return tag[1] if tag else ""


@dataclass(frozen=True, slots=True)
class Start:
    """The host's tasks before a container starts."""

    folders: tuple[str, ...]
    """Folders to create."""
    optional_binds: tuple[str, ...] = ()
    """Folders that the container gets if they exist where it starts: ``APPTAINER_BIND``."""
    optional_devices: tuple[str, ...] = ()
    """Devices that the container gets if they exist where it starts."""
    passed: tuple[str, ...] = ()
    """The beginnings of the names of host variables for a container with a clean environment.
    Empty: it is not clean."""
    names: tuple[str, ...] = ()
    """Further ones, whole names."""
    option: str = ""
    """The runtime's option that passes a variable by its name; empty: it passes those with the
    prefix ``APPTAINERENV_``."""
    prefix: str = ""
    """What variables for the runtime begin with: ``APPTAINER`` or ``SINGULARITY``."""
    evaluated: bool = False
    """Whether the runtime evaluates the values like a shell: then the script escapes them."""

    @property
    def found(self) -> list[str]:
        """The word for the runtime's options that the script finds; empty: it looks for none."""
        has_options = self.optional_devices or (self.passed and self.option)
        return [Verbatim('"${options[@]}"')] if has_options else []


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job whose processes Slurm or torchrun starts."""

    recipe: Recipe
    """The target, with its site."""
    launcher: Launcher
    resources: Resources
    setup: tuple[str, ...]
    """Shell lines for the host: modules and the recipe's set-up."""
    image: ImageFile
    container: Invocation
    """The container of each process."""
    start: Start
    data: str
    """A tar to unpack; empty: none."""
    unpacked: str
    """The folder for the unpacked data, on the node's own storage."""
    checkpoint: str
    """Folder or address of the checkpoints; empty: no checkpoints."""
    checkpoint_is_folder: bool
    master_address: str
    """The first node's name in the fast network, made of ``MASTER_ADDR``; empty: its usual name."""
    directives: tuple[str, ...]
    """Options of sbatch, for ``#SBATCH`` lines."""
    srun: tuple[str, ...]
    """Options of the srun that starts the processes."""
    chain: int
    """Number of segments; 0: not a chain."""
    token_folder: str
    """Template (mktemp) of the folder with the token of a Jupyter server; empty: no server."""
    host_variables: tuple[str, ...]
    """Variables whose value is that of the submitting shell."""

    @property
    def head(self) -> list[str]:
        """The container's program and its options, with those that the script finds."""
        return [*self.container.program, *self.start.found, *self.container.options]

    @property
    def image_is_local(self) -> bool:
        """Whether builder itself put the image into the engine's storage.

        The script must not pull it: in Docker Hub its name belongs to somebody else.
        """
        return self.image.reference == local_name(self.recipe.name)
