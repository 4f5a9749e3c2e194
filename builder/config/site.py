"""The ``site:`` part of a recipe: a model of the target's machine. Everything in which sites differ is data
here.

A *shell text* may contain variables of the job's shell, ``$NAME`` or ``${NAME}``. The target machine replaces
them when the command runs; ``$$`` is a dollar sign. Options of Slurm may contain ``{gpus}`` (GPUs per node),
``{total}`` (GPUs of all nodes) and ``{nodes}``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.config.fields import (
    Bind,
    Day,
    HostPattern,
    ImageFolder,
    Line,
    Model,
    Option,
    ProxyUrl,
    ShellTextField,
    Size,
    Variable,
    Variables,
)
from builder.config.queues import Slurm

RuntimeKind = Literal["docker", "podman", "podman-hpc", "singularity", "apptainer", "edf", "userns"]
Launcher = Literal["srun", "torchrun", "mpi", "ray"]

#: Host variables that pass into a clean environment by default. Each entry is the beginning of a name.
_PASS_ENV = (
    "SLURM_",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "NCCL_",
    "RCCL_",
    "FI_",
    "HSA_",
    "MIOPEN_",
    "MPICH_",
    "PMI_",
    "PMI2_",
    "PMIX_",
    "MLFLOW_",
    "AWS_",
)


#: Keys of a runtime that become options on its command line.
_COMMAND_LINE = ("program", "options", "gpu", "gpu_all", "gpu_each", "ranks", "shm_size", "groups")


class Additions(Model):
    """Extra settings of a job, for the host and for the container."""

    module_use: tuple[ShellTextField, ...] = ()
    """Folders of modules, made known with ``module use`` before ``modules`` are loaded."""
    modules: tuple[Line, ...] = ()
    """Environment modules to load on the host, in this order."""
    setup: tuple[str, ...] = ()
    """Shell lines for the host, copied unchanged."""
    options: tuple[ShellTextField, ...] = ()
    """Options of the container runtime."""
    binds: tuple[Bind, ...] = ()
    """Files and folders of the host to mount into the container."""
    env: Variables = Field(default_factory=dict)
    """Variables in the container."""
    wrapper: tuple[ShellTextField, ...] = ()
    """Words before the command in the container, inside ``runtime.wrapper``."""
    srun: tuple[Option, ...] = ()
    """Additional options of srun, such as ``--mpi=pmi2``."""


class Check(Model):
    """How a job's output shows that the network plugin is in use (``builder job --check-fabric``)."""

    env: Variables = Field(default_factory=dict)
    """Variables that make the collective library log its choice, such as ``NCCL_DEBUG: INFO``."""
    lines: tuple[Line, ...]
    """Texts of which the output must contain one, in any case. Without, the collective library fell back to
    sockets."""

    @model_validator(mode="before")
    @classmethod
    def _line_becomes_lines(cls, value: object) -> object:
        """The key was ``line`` with one text until 0.2; site files of users still have it."""
        if isinstance(value, dict) and isinstance(value.get("line"), str) and "lines" not in value:
            return {**{k: v for k, v in value.items() if k != "line"}, "lines": (value["line"],)}
        return value


class Fabric(Additions):
    """Extra settings of jobs on more than one node: the high-speed network."""

    check: Check | None = None
    """None: the recipe has no way to check the network plugin."""
    master_address: HostPattern = ""
    """The name at which ranks of other nodes reach the first node, where the fast network has names of its
    own: ``{host}i``. Empty: the node's name."""


class Runtime(Model):
    """The container runtime of the site."""

    kind: RuntimeKind = "userns"
    """``userns`` is builder's own runtime. ``edf`` is CSCS's Container Engine: ``srun --environment=FILE``
    starts the container, and the job writes the file."""
    program: Line = ""
    """Name or path of the program; empty: the same as ``kind``."""
    options: tuple[ShellTextField, ...] = ()
    """Always added after ``run`` or ``exec``."""
    gpu: tuple[ShellTextField, ...] = ()
    """Added when the container gets GPUs, such as ``--nv``; ``{count}`` is the number of GPUs, or ``all``."""
    gpu_all: tuple[ShellTextField, ...] = ()
    """Added after ``gpu`` when the container gets all GPUs of the node."""
    gpu_each: tuple[ShellTextField, ...] = ()
    """Added after ``gpu`` once per GPU when the container gets some of them. ``{index}`` counts GPUs from 0,
    ``{render}`` from 128, like the devices in /dev/dri."""
    ranks: tuple[ShellTextField, ...] = ()
    """Added when several containers communicate with each other."""
    binds: tuple[Bind, ...] = ()
    """Files and folders of the host to mount into every container."""
    env: Variables = Field(default_factory=dict)
    """Variables in every container."""
    clean_env: bool = False
    """Keep host variables out of the container, except ``pass_env``. By default, singularity and apptainer
    pass all of them."""
    pass_env: tuple[Variable, ...] = _PASS_ENV
    """Host variables that always pass into the container; an entry matches all names that start with it."""
    folders: tuple[ShellTextField, ...] = ()
    """Folders to create on each node before the container starts, such as caches that must not be on a
    network file system."""
    shm_size: Size = ""
    """Size of the container's /dev/shm, such as ``12g``; empty: the runtime's default."""
    groups: tuple[Line, ...] = ()
    """Additional groups of the container's process, such as ``video``."""
    wrapper: tuple[ShellTextField, ...] = ()
    """Words before the command in the container, such as a program that prepares libraries of the host."""
    optional_binds: tuple[ShellTextField, ...] = ()
    """Folders of the host to mount at the same path if they exist where the container starts; a variable that
    is not set is skipped. For singularity and apptainer only."""
    home: ImageFolder = ""
    """HOME of jobs, where compute nodes do not mount the usual one, such as
    ``/work/{account}/{account}/$USER``; empty: unchanged."""
    annotations: dict[Line, Line] = Field(default_factory=dict)
    """Annotations of the environment definition file; for ``edf`` only."""

    @property
    def command(self) -> str:
        """The program to run."""
        return self.program or self.kind

    @property
    def has_volumes(self) -> bool:
        """Whether the runtime has named volumes."""
        return self.kind in ("docker", "podman", "podman-hpc")

    @property
    def takes_sif(self) -> bool:
        """Whether the runtime runs SIF files instead of OCI images."""
        return self.kind in ("singularity", "apptainer")

    @property
    def image_suffix(self) -> str:
        """How the names of images end that are files: SIFs, and squashfs for ``edf``. Empty: OCI images."""
        if self.kind == "edf":
            return ".sqsh"
        return ".sif" if self.takes_sif else ""

    @model_validator(mode="after")
    def _options_fit_kind(self) -> Runtime:
        if self.takes_sif and (self.shm_size or self.groups):
            raise ValueError(f"{self.kind} does not support shm_size and groups: it uses those of the host")
        if self.clean_env and not self.takes_sif:
            raise ValueError(
                f"clean_env is for singularity and apptainer only: {self.kind} passes no host variables"
            )
        if self.optional_binds and not self.takes_sif:
            raise ValueError(f"optional_binds are for singularity and apptainer only, not for {self.kind}")
        if self.annotations and self.kind != "edf":
            raise ValueError(f"annotations are for edf only, not for {self.kind}")
        useless = [key for key in _COMMAND_LINE if self.kind == "edf" and getattr(self, key)]
        if useless:
            raise ValueError(f"{useless[0]} does not apply: edf has no command line of its own")
        return self


class Node(Model):
    """One compute node, as a job sees it."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """Number of devices as torch counts them: an MI250X counts as two."""
    cores: Annotated[int, Field(ge=1)] = 1
    """Cores that a job can use."""
    memory: Size = ""
    """``--mem`` for jobs that use all GPUs of a node; empty: no ``--mem``."""
    cpus_per_gpu: Annotated[int, Field(ge=1)] | None = None
    """Cores for the process of one GPU; None: cores / gpus."""
    memory_per_gpu: Size = ""
    """Memory per GPU, for jobs that use a part of a node; empty: no memory option."""
    tasks: Annotated[int, Field(ge=1)] = 1
    """Processes per node of jobs without GPUs; each gets cores / tasks."""
    cpu_bind: Line = ""
    """``--cpu-bind`` of srun for one process per GPU of a whole node: the cores closest to each GPU."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Node:
        if self.gpus and self.gpus * self.gpu_cores > self.cores:
            raise ValueError(
                f"{self.gpus} GPUs with {self.gpu_cores} cores each are more than {self.cores} cores"
            )
        if self.tasks > self.cores:
            raise ValueError(f"{self.tasks} tasks are more than {self.cores} cores")

        kind, _, values = self.cpu_bind.rpartition(":")
        is_list = kind.rpartition(",")[2] in ("mask_cpu", "map_cpu")
        count = len(values.split(","))
        if is_list and self.gpus and count != self.gpus:
            raise ValueError(f"cpu_bind has {count} values for {self.gpus} GPUs")
        return self

    @property
    def gpu_cores(self) -> int:
        """Cores for the process of one GPU."""
        return self.cpus_per_gpu or max(self.cores // max(self.gpus, 1), 1)


class Ray(Model):
    """A Ray cluster of containers on one machine: one head, and one worker per GPU."""

    port: int = 6379
    """Port of the head."""
    dashboard_port: int = 8265
    """Port of the dashboard and of job submission."""
    metrics_port: int = 8080
    """Port of the metrics export."""
    worker_cpus: Annotated[int, Field(ge=1)] = 1
    """CPUs that each worker offers."""
    entrypoint_gpus: Annotated[int, Field(ge=0)] = 1
    """GPUs that the submitted command reserves in a cluster with one GPU."""
    entrypoint_cpus: Annotated[int, Field(ge=1)] = 1
    """CPUs that the submitted command reserves."""
    worker_devices: tuple[ShellTextField, ...] = ()
    """Device files of one worker. ``{index}`` counts GPUs from 0, ``{render}`` from 128, like the devices in
    /dev/dri."""
    worker_env: Variables = Field(default_factory=dict)
    """Variables of one worker; may contain ``{index}`` and ``{render}``."""
    nvidia: bool = False
    """Whether workers get their GPU by NVIDIA device requests, by index."""


class Proxy(Model):
    """How compute nodes reach the internet."""

    url: ProxyUrl
    """The proxy for http and https: ``http://proxy.example.org:3128``."""
    no_proxy: tuple[Line, ...] = ("localhost", "127.0.0.1")
    """Hosts that are reached directly."""


class Site(Model):
    """The machine that a target is built for."""

    name: str = ""
    """The site file that the recipe starts from (``builder sites``); empty: none."""
    title: Line = ""
    """Name of the system for messages and comments; empty: the target's name."""
    status: Literal["current", "retired"] = "current"
    """``retired``: the system is switched off. Its recipes can be read and tested, no job is submitted."""
    retired: Day | None = None
    """The day on which the system was switched off; None: not known, or not retired."""
    successors: tuple[Line, ...] = ()
    """What to use instead of a retired system: names of sites, or a system's name."""
    checked: Day | None = None
    """The day on which somebody compared this file with its sources (``builder sites check``). A file that
    extends another one does not inherit it."""
    sources: tuple[Line, ...] = ()
    """Where the values come from: pages and repositories, each with its date. Not inherited either."""
    runtime: Runtime = Runtime()
    """The container runtime of the site."""
    images: ImageFolder = ""
    """The site's folder for SIF files, such as ``/work/{account}/{account}/$USER/images``; ``{account}`` is
    the job's."""
    module_use: tuple[ShellTextField, ...] = ()
    """Folders of modules, made known with ``module use`` before ``modules`` are loaded."""
    modules: tuple[Line, ...] = ()
    """Environment modules to load at the start of a job."""
    setup: tuple[str, ...] = ()
    """Shell lines of a job, copied unchanged after the modules."""
    proxy: Proxy | None = None
    """None: compute nodes reach the internet directly, or not at all."""
    warmup: tuple[ShellTextField, ...] = ()
    """A command that runs once on each node, in the container, before the processes start: the first use of a
    GPU may take long. Empty: none."""
    slurm: Slurm | None = None
    """None: the site has no scheduler."""
    launcher: Launcher = "srun"
    """How the processes of a job start, unless ``--launcher`` names another way."""
    node: Node = Node()
    """One compute node, as a job sees it."""
    local: ShellTextField = ""
    """A folder for the job on the node's own storage, to unpack data: ``$SLURM_TMPDIR``,
    ``/tmp/$USER-$SLURM_JOB_ID``."""
    local_managed: bool = False
    """Whether Slurm creates and removes the folder ``local``."""
    fabric: Fabric = Fabric()
    """Extra settings of jobs on several nodes."""
    mpi: Additions | None = None
    """Extra settings of the launcher ``mpi``; None: the launcher is not available."""
    ray: Ray | None = None
    """None: the launcher ``ray`` is not available."""

    @model_validator(mode="after")
    def _status_fits(self) -> Site:
        if self.status != "retired" and (self.retired or self.successors):
            raise ValueError("retired and successors need 'status: retired'")
        if self.runtime.kind == "edf" and self.slurm is None:
            raise ValueError("runtime edf needs 'slurm:': srun starts the container")
        if self.runtime.kind == "edf" and self.ray is not None:
            raise ValueError("ray needs docker or podman, not edf")
        with_options = [key for key in ("fabric", "mpi") if getattr(getattr(self, key), "options", ())]
        if self.runtime.kind == "edf" and with_options:
            raise ValueError(f"{with_options[0]}.options: edf has no command line; use runtime.annotations")
        return self

    @model_validator(mode="after")
    def _launcher_fits(self) -> Site:
        needs_slurm = self.launcher in ("srun", "mpi") and self.runtime.kind != "userns"
        if needs_slurm and self.slurm is None:
            raise ValueError(
                f"launcher {self.launcher} needs 'slurm:'; "
                "without Slurm write 'launcher: torchrun' or 'launcher: ray'"
            )
        if self.launcher == "mpi" and self.mpi is None:
            raise ValueError("launcher mpi needs 'mpi:' (modules, binds, variables of the host's MPI)")
        if self.launcher == "ray" and self.ray is None:
            raise ValueError("launcher ray needs 'ray:'")
        return self


def slurm_of(site: Site) -> Slurm:
    """Returns the Slurm configuration of a site that has one."""
    assert site.slurm is not None
    return site.slurm
