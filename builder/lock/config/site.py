"""The target's machine: the ``site:`` part of a recipe, and site files; all that differs is data.

A *shell text* may contain variables of the job's shell, ``$NAME`` or ``${NAME}``. The target
machine replaces them when the command runs; ``$$`` is a dollar sign. Options of Slurm may contain
``{gpus}`` (GPUs per node), ``{total}`` (GPUs of all nodes) and ``{nodes}``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.core.datafiles import read_beside, table
from builder.core.model import Compression

from .fields import (
    Bind,
    Day,
    HostPattern,
    ImageFolder,
    Line,
    Model,
    Option,
    ShellTextField,
    Size,
    Variable,
    Variables,
    empty,
    matching,
)
from .queues import Slurm

RuntimeKind = Literal[
    "docker", "podman", "podman-hpc", "singularity", "apptainer", "edf", "pyxis", "userns"
]
RuntimeFamily = Literal["engine", "sif", "plugin", "own"]
Launcher = Literal["srun", "torchrun", "mpi"]
GpuVendor = Literal["nvidia", "amd", "none"]
Engine = Literal["layered", "docker", "apptainer", "cotainr"]
Platform = Literal["linux-64", "linux-aarch64"]
Format = Literal["oci", "sif"]

#: Host variables that pass into a clean environment by default. Each entry is the beginning of a name.
_PASS_ENV = tuple(read_beside(__file__, "pass_env.txt").split())

#: Keys of a runtime that become options on its command line.
_COMMAND_LINE = ("program", "options", "gpu", "ranks")


class Gpu(Model):
    """The GPU that the image is for."""

    vendor: GpuVendor = "none"
    """The maker of the GPUs; ``none``: the image needs no GPU."""
    architectures: tuple[Annotated[Line, matching("architecture")], ...] = ()
    """As torch names them: ``sm_80``, ``gfx90a``."""


class SifOptions(Model):
    """How a SIF is laid out.

    ``flat``: one squashfs, which every runtime mounts. ``layered``: the squashfs of the base
    unchanged, and the packages as overlay partitions above it. Rebuilding a layered SIF costs only
    what has changed; Apptainer 1.x and SingularityCE 3.6 and later mount it, unless their
    configuration disables overlays.
    """

    layout: Literal["flat", "layered"] = "flat"
    """One squashfs, or overlay partitions above the base's."""
    compression: Compression = "zstd"
    """Compression of the partitions; ``gzip`` for hosts whose kernel or squashfuse does not support
    zstd.
    """


class Additions(Model):
    """Extra settings of a job, for the host and for the container."""

    modules: tuple[Line, ...] = ()
    """Environment modules to load on the host, in this order."""
    setup: tuple[str, ...] = ()
    """Shell lines for the host, copied unchanged."""
    options: tuple[ShellTextField, ...] = ()
    """Options of the container runtime."""
    optional_devices: tuple[ShellTextField, ...] = ()
    """Devices of the host that the container gets if they exist where it starts. For docker,
    podman and podman-hpc only."""
    binds: tuple[Bind, ...] = ()
    """Files and folders of the host to mount into the container."""
    env: Variables = Field(default_factory=dict)
    """Variables in the container."""
    wrapper: tuple[ShellTextField, ...] = ()
    """Words before the command in the container, such as a program that prepares libraries of the
    host.
    """
    srun: tuple[Option, ...] = ()
    """Additional options of srun, such as ``--mpi=pmi2``."""


class Fabric(Additions):
    """Extra settings of jobs on more than one node: the high-speed network."""

    master_address: HostPattern = ""
    """The name at which ranks of other nodes reach the first node, where the fast network has names
    of its own: ``{host}i``. Empty: the node's name."""
    infiniband: bool = False
    """Whether the network is InfiniBand, or Ethernet with RoCE: NCCL reaches it by libibverbs of
    the image, and uses TCP without."""


class HostMpi(Additions):
    """Extra settings of the launcher ``mpi``."""

    abi: Literal["", "mpich", "openmpi"] = ""
    """The ABI of the host's MPI, where it replaces the image's. The image must have no MPI of its
    own then. Empty: the processes use the image's MPI."""


class Runtime(Model):
    """The container runtime of the site."""

    kind: RuntimeKind = "userns"
    """``userns`` is builder's own runtime. ``edf`` is CSCS's Container Engine: ``srun
    --environment=FILE`` starts the container, and the job writes the file. ``pyxis``: ``srun
    --container-image=IMAGE`` starts it, with enroot."""
    program: Line = ""
    """Name or path of the program; empty: the same as ``kind``."""
    options: tuple[ShellTextField, ...] = ()
    """Always added after ``run`` or ``exec``."""
    gpu: tuple[ShellTextField, ...] = ()
    """Added when the container gets GPUs, such as ``--nv``; ``{count}`` is the number of GPUs, or
    ``all``.
    """
    ranks: tuple[ShellTextField, ...] = ()
    """Added when several containers communicate with each other."""
    replaces: dict[Option, tuple[Option, ...]] = Field(default_factory=dict)
    """What an option brings itself or does not allow, by the beginnings of options: those are left
    out beside it. For docker, podman and podman-hpc only.
    """
    binds: tuple[Bind, ...] = ()
    """Files and folders of the host to mount into every container."""
    env: Variables = Field(default_factory=dict)
    """Variables in every container."""
    clean_env: bool = False
    """Keep host variables out of the container, except ``pass_env``. By default, singularity and
    apptainer pass all of them."""
    pass_env: tuple[Variable, ...] = _PASS_ENV
    """Host variables that always pass into the container; an entry matches all names that start
    with it.
    """
    folders: tuple[ShellTextField, ...] = ()
    """Folders to create on each node before the container starts, such as caches that must not be
    on a network file system."""
    optional_binds: tuple[ShellTextField, ...] = ()
    """Folders of the host to mount at the same path if they exist where the container starts; a
    variable that is not set is skipped. For singularity and apptainer only."""
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
    def family(self) -> RuntimeFamily:
        """What the runtime has in common with others; ``own`` is builder's own, ``userns``."""
        family: RuntimeFamily = table(__file__, "runtime_families.yaml")[self.kind]
        return family

    @model_validator(mode="after")
    def _options_fit_kind(self) -> Runtime:
        for key, kinds in table(__file__, "runtime_keys.yaml").items():
            if getattr(self, key) and self.kind not in kinds.replace(",", "").split():
                raise ValueError(f"{key}: for {kinds} only, not for {self.kind}")
        useless = [key for key in _COMMAND_LINE if self.family == "plugin" and getattr(self, key)]
        if useless:
            problem = f"{self.kind} has no command line of its own"
            raise ValueError(f"{useless[0]} does not apply: {problem}")
        return self


class NodeHardware(Model):
    """One compute node, as a job sees it."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """Number of devices as torch counts them: an MI250X counts as two."""
    whole: bool = False
    """Whether jobs get whole nodes, so that a job without ``--gpus`` uses all GPUs."""
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
    """``--cpu-bind`` of srun for one process per GPU of a whole node: the cores closest to each
    GPU.
    """
    cpu_bind_source: Line = ""
    """The cores of each GPU and the document that says so, for a comment in scripts."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> NodeHardware:
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


class Site(Model):
    """The machine that a target is built for."""

    name: str = ""
    """The site file that the recipe starts from (``builder sites``); empty: none."""
    title: Line = ""
    """Name of the system for messages and comments; empty: the target's name."""
    checked: Day | None = None
    """The day on which somebody compared this file with its sources (``builder sites`` lists it). A
    file that extends another one does not inherit it."""
    sources: tuple[Line, ...] = ()
    """Where the values come from: pages and repositories, each with its date. Not inherited
    either.
    """
    runtime: Runtime = empty()
    """The container runtime of the site."""
    images: ImageFolder = ""
    """The site's folder for SIF files, such as ``/work/{account}/{account}/$USER/images``;
    ``{account}`` is the job's."""
    modules: tuple[Line, ...] = ()
    """Environment modules to load at the start of a job."""
    setup: tuple[str, ...] = ()
    """Shell lines of a job, copied unchanged after the modules."""
    slurm: Slurm | None = None
    """None: the site has no scheduler."""
    launcher: Launcher = "srun"
    """How the processes of a job start, unless ``--launcher`` names another way."""
    node: NodeHardware = empty()
    """One compute node, as a job sees it."""
    local: ShellTextField = ""
    """A folder for the job on the node's own storage, to unpack data: ``$SLURM_TMPDIR``,
    ``/tmp/$USER-$SLURM_JOB_ID``."""
    local_managed: bool = False
    """Whether Slurm creates and removes the folder ``local``."""
    fabric: Fabric = empty()
    """Extra settings of jobs on several nodes."""
    mpi: HostMpi | None = None
    """Extra settings of the launcher ``mpi``; None: the launcher is not available."""

    @model_validator(mode="after")
    def _runtime_fits(self) -> Site:
        runtime, is_plugin = self.runtime, self.runtime.family == "plugin"
        if is_plugin and self.slurm is None:
            raise ValueError(f"runtime {runtime.kind} needs 'slurm:': srun starts the container")
        for key, additions in (("fabric", self.fabric), ("mpi", self.mpi or HostMpi())):
            if is_plugin and additions.options:
                instead = "runtime.annotations" if runtime.kind == "edf" else f"{key}.srun"
                raise ValueError(
                    f"{key}.options: {runtime.kind} has no command line; use {instead}"
                )
            if additions.optional_devices and runtime.family != "engine":
                only = "is for docker, podman and podman-hpc only"
                raise ValueError(f"{key}.optional_devices {only}, not for {runtime.kind}")
        return self

    @model_validator(mode="after")
    def _launcher_fits(self) -> Site:
        needs_slurm = self.launcher in ("srun", "mpi") and self.runtime.family != "own"
        if needs_slurm and self.slurm is None:
            raise ValueError(
                f"launcher {self.launcher} needs 'slurm:'; without Slurm write 'launcher: torchrun'"
            )
        if self.launcher == "mpi" and self.mpi is None:
            keys = "(modules, binds, variables of the host's MPI)"
            raise ValueError(f"launcher mpi needs 'mpi:' {keys}")
        return self


class SiteFile(Model):
    """A machine: what recipes for it share."""

    base: Line | None = None
    """The base image of recipes that name none."""
    platform: Platform = "linux-64"
    """The processor and system of the machine, with conda's name."""
    gpu: Gpu = empty()
    """The GPUs of the machine."""
    virtual_packages: dict[Line, Line] = Field(default_factory=dict)
    """Virtual packages of the machine and their versions: ``__cuda``, ``__glibc``, ``__linux``."""
    format: Format = "oci"
    """What the machine runs: an OCI image (docker, podman-hpc) or a SIF (singularity,
    apptainer).
    """
    sif: SifOptions = empty()
    """How a SIF is laid out."""
    engine: Engine = "layered"
    """Default engine; ``--engine`` overrides it."""
    site: Site = empty()
    """The machine: container runtime, scheduler, node, network."""


def slurm_of(site: Site) -> Slurm:
    """Return the Slurm configuration of a site that has one."""
    assert site.slurm is not None
    return site.slurm
