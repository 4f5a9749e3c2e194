"""What a target's machine is like: the ``site:`` part of a recipe. Everything that sites differ in is data here, checked.

Texts marked *shell text* may name variables of the job's shell, ``$NAME`` or ``${NAME}``, which the machine fills in when the
command runs; ``$$`` is a dollar sign. Options of Slurm may hold ``{gpus}`` (GPUs of one node), ``{total}`` (of all nodes) and
``{nodes}``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

RuntimeKind = Literal["docker", "podman", "podman-hpc", "singularity", "apptainer", "userns"]
Launcher = Literal["srun", "torchrun", "mpi", "ray"]
QueueName = Literal["gpu", "node", "nodes", "cpu", "interactive", "build"]

#: A variable of the job's shell in a shell text, or an escaped dollar sign.
VARIABLE = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\}|(?P<dollar>\$))")
_TIME = re.compile(r"(?:(?P<d>\d+)-)?(?P<a>\d+)(?::(?P<b>\d+))?(?::(?P<c>\d+))?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_SIZE = re.compile(r"\d+[kKmMgGtT]?[bB]?")


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def shell_text(value: str) -> str:
    """Checks a shell text: a dollar sign begins a variable's name or stands twice.

    Raises:
        ValueError: it does neither.
    """
    if "$" in VARIABLE.sub("", value):
        raise ValueError(
            f"{value!r}: write a variable as $NAME or ${{NAME}}, a dollar sign as $$; commands cannot stand here"
        )
    if "\n" in value or "\0" in value:
        raise ValueError(f"{value!r}: must be one line")
    return value


def seconds(value: str) -> int:
    """Seconds of a time as Slurm writes it: ``MINUTES``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M``, ``D-H:M:S``.

    Raises:
        ValueError: it is none of these, or nothing at all is left.
    """
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not a time: write HH:MM:SS, or D-HH:MM as Slurm does")
    d, a, b, c = (int(found[k] or 0) for k in "dabc")
    if found["d"] is not None:
        total = d * 86400 + a * 3600 + b * 60 + c
    elif found["c"] is not None:
        total = a * 3600 + b * 60 + c
    else:
        total = a * 60 + b
    if total <= 0:
        raise ValueError(f"{value!r} is no time at all: write HH:MM:SS")
    return total


def _time(value: str) -> str:
    if value:
        seconds(value)
    return value


def _bind(value: str) -> str:
    source, _, rest = shell_text(value).partition(":")
    target, _, options = rest.partition(":")
    for path in (source, *((target,) if rest else ())):
        if not path.startswith(("/", "$")) or "," in path:
            raise ValueError(
                f"{value!r}: write SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro, with absolute paths"
            )
    if options not in ("", "ro", "rw"):
        raise ValueError(f"{value!r}: {options!r} is neither ro nor rw")
    return value


def _variable(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} cannot be the name of a variable")
    return value


def _option(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError(f"{value!r}: write options as --name=value")
    if unknown := [n for n in _PLACEHOLDER.findall(value) if n not in ("gpus", "total", "nodes")]:
        raise ValueError(f"{value!r}: {{{unknown[0]}}} is not one of {{gpus}}, {{total}}, {{nodes}}")
    if any(c in value for c in "\n\0"):
        raise ValueError(f"{value!r}: must be one line")
    return value


def _size(value: str) -> str:
    if value and not _SIZE.fullmatch(value):
        raise ValueError(f"{value!r} is not a size: write a number with a unit, such as 12g")
    return value


def _images(value: str) -> str:
    if unknown := [n for n in _PLACEHOLDER.findall(VARIABLE.sub("", value)) if n != "account"]:
        raise ValueError(f"{value!r}: {{{unknown[0]}}} is not {{account}}")
    return shell_text(value)


ShellTextField = Annotated[str, AfterValidator(shell_text)]
Bind = Annotated[str, AfterValidator(_bind)]
Time = Annotated[str, AfterValidator(_time)]
Option = Annotated[str, AfterValidator(_option)]
Variable = Annotated[str, AfterValidator(_variable)]
Size = Annotated[str, AfterValidator(_size)]
Variables = dict[Variable, ShellTextField]


class Additions(Model):
    """What a job needs beside the usual, on the host and in the container."""

    modules: tuple[str, ...] = ()
    """Loaded on the host, in this order."""
    setup: tuple[str, ...] = ()
    """Lines of shell for the host, as they are."""
    options: tuple[ShellTextField, ...] = ()
    """Of the runtime."""
    binds: tuple[Bind, ...] = ()
    env: Variables = Field(default_factory=dict)
    """Variables in the container."""


class Check(Model):
    """How to see in a job's output that the network's plugin is used (``builder job --check-fabric``)."""

    env: Variables = Field(default_factory=dict)
    line: str
    """What the output then holds; without it, the collective library fell back to sockets."""


class Fabric(Additions):
    """For jobs on more than one node."""

    check: Check | None = None


class Runtime(Model):
    """What runs the image."""

    kind: RuntimeKind = "userns"
    program: str = ""
    """Its name or path, where that is not the kind's."""
    options: tuple[ShellTextField, ...] = ()
    """After ``run`` or ``exec``, always."""
    gpu: tuple[ShellTextField, ...] = ()
    """When the command is to have GPUs: ``--gpu``, ``--nv``, ``--device=/dev/kfd`` ... ``{count}``: how many, or ``all``."""
    gpu_all: tuple[ShellTextField, ...] = ()
    """Beside ``gpu``, when it is to have all of them."""
    gpu_each: tuple[ShellTextField, ...] = ()
    """Beside ``gpu``, once for each, when it is to have some: ``{index}`` counts from 0, ``{render}`` (of /dev/dri) from 128."""
    ranks: tuple[ShellTextField, ...] = ()
    """When the container is one of several processes that talk to each other."""
    binds: tuple[Bind, ...] = ()
    env: Variables = Field(default_factory=dict)
    clean_env: bool = False
    """Keep the host's variables out, but for ``pass_env`` (singularity and apptainer let all of them in)."""
    pass_env: tuple[Variable, ...] = (
        "SLURM_",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "NCCL_",
        "RCCL_",
        "MLFLOW_",
        "AWS_",
    )
    """Variables of the job that reach the container all the same; a name stands for all that begin with it."""
    folders: tuple[ShellTextField, ...] = ()
    """Made on every node before the container starts (caches that must not lie on a network file system)."""
    shm_size: Size = ""
    groups: tuple[str, ...] = ()
    """Further groups of the process: ``video``."""

    @property
    def command(self) -> str:
        return self.program or self.kind

    @property
    def takes_sif(self) -> bool:
        return self.kind in ("singularity", "apptainer")

    @model_validator(mode="after")
    def _fits(self) -> Runtime:
        if self.takes_sif and (self.shm_size or self.groups):
            raise ValueError(f"{self.kind} has neither shm_size nor groups: the host's are used")
        if self.clean_env and not self.takes_sif:
            raise ValueError(
                f"clean_env is for singularity and apptainer: {self.kind} lets none of the host's variables in"
            )
        return self


class Node(Model):
    """One node as a job sees it."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """Devices that torch counts: an MI250X is two."""
    cores: Annotated[int, Field(ge=1)] = 1
    """That a job may have."""
    memory: Size = ""
    """``--mem`` of a job that takes whole nodes; empty: not asked for."""
    cpus_per_gpu: Annotated[int, Field(ge=1)] | None = None
    """Cores for one GPU's process; cores / gpus where it is not said."""
    memory_per_gpu: Size = ""
    """Of a job that takes a part of a node, for each of its GPUs."""
    tasks: Annotated[int, Field(ge=1)] = 1
    """Processes on a node of a job without GPUs; each gets cores / tasks."""
    cpu_bind: str = ""
    """srun's ``--cpu-bind`` for one process per GPU of a whole node: the cores next to each."""

    @model_validator(mode="after")
    def _adds_up(self) -> Node:
        if self.gpus * self.gpu_cores > self.cores and self.gpus:
            raise ValueError(
                f"{self.gpus} GPUs with {self.gpu_cores} cores each are more than {self.cores} cores"
            )
        if self.tasks > self.cores:
            raise ValueError(f"{self.tasks} tasks are more than {self.cores} cores")
        kind, _, values = self.cpu_bind.rpartition(":")
        if (
            kind.rpartition(",")[2] in ("mask_cpu", "map_cpu")
            and self.gpus
            and len(values.split(",")) != self.gpus
        ):
            raise ValueError(f"cpu_bind holds {len(values.split(','))} values for {self.gpus} GPUs")
        return self

    @property
    def gpu_cores(self) -> int:
        """Cores of one GPU's process."""
        return self.cpus_per_gpu or max(self.cores // max(self.gpus, 1), 1)


class Queue(Model):
    """Where one kind of job goes, and what it asks for there."""

    partition: str = ""
    qos: str = ""
    constraint: str = ""
    gpus: Option | None = None
    """How GPUs are asked for here, where that differs from ``slurm.gpus``."""
    memory: Size = ""
    """``--mem``, over the node's."""
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    time: Time = ""
    """When the job does not say."""
    max_time: Time = ""
    options: tuple[Option, ...] = ()
    """Further options of sbatch."""
    srun: tuple[Option, ...] = ()
    """Further options of srun."""


class Slurm(Model):
    """A Slurm site."""

    account: Literal["required", "optional", "none"] = "required"
    account_example: str = ""
    """What an account looks like here, for error messages: ``project_465000000``."""
    gpus: Option = "--gpus-per-node={gpus}"
    """How GPUs are asked for."""
    memory_by: Literal["node", "gpu"] = "node"
    """How ``memory_per_gpu`` is asked for: its sum as ``--mem``, or as it is with ``--mem-per-gpu``."""
    time: Time = "01:00:00"
    max_time: Time = "24:00:00"
    """Of one job; longer runs are chains."""
    queues: dict[QueueName, Queue] = Field(default_factory=dict)
    """``gpu``: fewer GPUs than a node has; ``node``: one whole node; ``nodes``: several (``node`` where it is not said);
    ``cpu``: no GPU; ``interactive``: salloc; ``build``: building images on a compute node."""
    srun: tuple[Option, ...] = ()
    salloc_on_node: bool = True
    """salloc's shell is on the node that it got; else it stays where it was, and srun goes there."""
    master_port: Annotated[int, Field(ge=1024, le=65535)] = 29500


class Ray(Model):
    """A Ray cluster of containers on one machine: a head and a worker for each GPU."""

    port: int = 6379
    dashboard_port: int = 8265
    metrics_port: int = 8080
    worker_cpus: Annotated[int, Field(ge=1)] = 1
    entrypoint_gpus: Annotated[int, Field(ge=0)] = 1
    entrypoint_cpus: Annotated[int, Field(ge=1)] = 1
    worker_devices: tuple[ShellTextField, ...] = ()
    """Device files of one worker; ``{index}`` counts GPUs from 0, ``{render}`` from 128 as /dev/dri does."""
    worker_env: Variables = Field(default_factory=dict)
    """Variables of one worker; ``{index}`` as above."""
    nvidia: bool = False
    """GPUs are given by NVIDIA's device requests, by id."""


class Site(Model):
    """The machine that a target is for."""

    title: str = ""
    """The system's name for people."""
    runtime: Runtime = Runtime()
    images: Annotated[str, AfterValidator(_images)] = ""
    """The folder of the images there (shell text; ``{account}`` is the job's): ``/work/{account}/{account}/$USER/images``."""
    modules: tuple[str, ...] = ()
    """Loaded before anything else in a job."""
    setup: tuple[str, ...] = ()
    """Lines of shell in a job, as they are, after the modules."""
    slurm: Slurm | None = None
    """None: no scheduler."""
    launcher: Launcher = "srun"
    """How a job's processes start, unless ``--launcher`` says otherwise."""
    node: Node = Node()
    local: Annotated[str, AfterValidator(shell_text)] = ""
    """A folder of the job on the node itself, to unpack data into: ``$SLURM_TMPDIR``, ``/tmp/$USER-$SLURM_JOB_ID``."""
    local_managed: bool = False
    """Slurm makes and removes that folder itself."""
    fabric: Fabric = Fabric()
    mpi: Additions | None = None
    ray: Ray | None = None

    @model_validator(mode="after")
    def _fits(self) -> Site:
        if self.slurm is None and self.launcher in ("srun", "mpi") and self.runtime.kind != "userns":
            raise ValueError(
                f"launcher {self.launcher} needs 'slurm:'; without it write 'launcher: torchrun' or 'launcher: ray'"
            )
        if self.launcher == "mpi" and self.mpi is None:
            raise ValueError("launcher mpi needs 'mpi:' (modules, binds, variables of the host's MPI)")
        if self.launcher == "ray" and self.ray is None:
            raise ValueError("launcher ray needs 'ray:'")
        return self
