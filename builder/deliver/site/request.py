"""The request for a job: the options of ``builder job``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from builder.lock.config.site import Launcher


@dataclass(frozen=True, slots=True)
class SlurmRequest:
    """Options of Slurm that replace the recipe's. Empty: the recipe's value."""

    partition: str = ""
    qos: str = ""
    options: tuple[str, ...] = ()
    """Further options of sbatch and salloc, each ``--name`` or ``--name=value``."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The command of a job, and its resources. In all fields, empty or None: the recipe's value."""

    command: tuple[str, ...] = ()
    """What each process runs; empty: the image's own command."""
    nodes: int = 1
    gpus: int | None = None
    """GPUs per node. None: one on a single node, all on several nodes and where the site gives whole
    nodes."""
    tasks: int | None = None
    """Processes per node, for jobs without GPUs. With GPUs there is one process per GPU."""
    time: str = ""
    """Time limit as Slurm writes it; of one segment in a chain."""
    account: str = ""
    """The account that the site charges."""
    data: str = ""
    """A tar on the site, to unpack on the node's own storage."""
    chain: int | None = None
    """Number of segments that run one after the other; None: a single job."""
    checkpoint: str = ""
    """A folder, or an address such as ``s3://bucket/folder``."""
    launcher: Launcher | None = None
    image: str = ""
    """A reference, or the path of a SIF on the site."""
    image_id: str = ""
    """Digest of the config of ``image``, if it is known: podman-hpc finds the image by it."""
    name: str = ""
    """Name of the job; default: the target's."""
    binds: tuple[str, ...] = ()
    """``SOURCE[:TARGET[:MODE]]``; relative sources start at the folder of the submission."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables in the container; None: the value of the submitting shell, not in the script."""
    env_file: str = ""
    """A file on the site with ``NAME=VALUE`` lines; its content is not in the script."""
    slurm: SlurmRequest = SlurmRequest()
    jupyter: bool = False
    """Whether the job runs a Jupyter server instead of a command."""
