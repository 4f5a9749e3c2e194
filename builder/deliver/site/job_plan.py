"""Plans jobs: a request and the recipe's site become plain data for the templates."""

from __future__ import annotations

from builder.core.errors import UsageError
from builder.deliver.site import paths, slurm
from builder.lock.config.recipe import Recipe

from .arguments import parse_bind
from .containers import ContainerRequest, Invocation
from .job import BatchJob, ImageFile, Resources
from .launchers import LAUNCHERS, JupyterLauncher, ProcessLauncher, SrunLauncher
from .limits import gpu_counts
from .request import JobRequest
from .runtimes.table import runtime_of
from .shell import ShellText, command_line, from_user, join


def plan_job(recipe: Recipe, request: JobRequest) -> BatchJob:
    """Plan a job of a target.

    Raises:
        UsageError: the site cannot run the job, or a value is not valid; the message names the
            option.
    """
    gpus = check_request(recipe, request)
    kind = LAUNCHERS[request.launcher or recipe.site.launcher]
    launcher = (JupyterLauncher if request.jupyter else kind)(recipe, request, gpus)
    launcher.check()
    return _JobPlan(launcher).job()


def salloc(recipe: Recipe, request: JobRequest) -> tuple[str, str]:
    """Return the line that allocates a node with a terminal, and the lines to type there.

    Raises:
        UsageError: the site has no scheduler, cannot run the job, or a value is not valid.
    """
    site = recipe.site
    if site.slurm is None:
        raise UsageError(
            f"{recipe.site_title} has no scheduler: log in to the machine to work interactively",
            f"builder run {recipe.name} -- bash",
        )
    gpus = check_request(recipe, request)
    SrunLauncher(recipe, request, gpus).check()

    container = _interactive_container(recipe, request, gpus)
    # Where the shell of salloc runs on the node, srun there starts one process per GPU.
    on_node = site.slurm.salloc_on_node
    resources = Resources(request.nodes, gpus, tasks=max(gpus, 1) if on_node else 1)
    options = slurm.job_options(recipe, request, resources, "interactive")
    options = slurm.with_raw_options(options, request.slurm)
    # srun of Slurm 22.05 to 24.05 does not take the cores of a task from the job.
    cores = [option for option in options if option.startswith("--cpus-per-task=")]
    srun = ["srun", "--pty", *cores, *site.slurm.srun]
    if on_node and not container.srun:
        srun = []
    if container.srun:
        srun += container.srun.options
    then = runtime_of(recipe).shell_line([*srun, *container.words], container.srun)
    return command_line(["salloc", *options]), then


def check_request(recipe: Recipe, request: JobRequest) -> int:
    """Check the numbers and names of a request.

    Returns:
        The GPUs of each node.

    Raises:
        UsageError: a value is not valid; the message names the option.
    """
    runtime_of(recipe).check_gpus(request.gpus)
    gpus = _gpus_per_node(recipe, request)
    if request.tasks is not None and gpus:
        message = "--tasks cannot be used with GPUs: there is one process per GPU"
        raise UsageError(message, "use --gpus N instead")
    slurm.check_slurm_request(recipe, request)
    return gpus


def _gpus_per_node(recipe: Recipe, request: JobRequest) -> int:
    """Return the GPUs asked for; else all of the node, or one, or the least that Slurm gives."""
    if request.gpus is not None:
        return request.gpus
    node, site = recipe.site.node, recipe.site
    if request.nodes > 1 or node.whole:
        return node.gpus
    counts = gpu_counts(site.slurm, slurm.find_queue(site, "gpu")) if site.slurm else []
    return min(min(counts, default=1), node.gpus)


def edf_name(recipe: Recipe) -> str:
    """Return the name of the file for ``srun --environment`` in the current folder."""
    return f"./{recipe.name}.toml"


def _interactive_container(recipe: Recipe, request: JobRequest, gpus: int) -> Invocation:
    site = recipe.site
    start, runtime = paths.start_folder(site), runtime_of(recipe)
    container = ContainerRequest(
        image=runtime.job_image(request),
        command=request.command or ("bash",),
        gpus=gpus if gpus < site.node.gpus else None,
        binds=(start, *(parse_bind(bind, start) for bind in request.binds)),
        env=request.env,
        env_file=paths.host_path(request.env_file, start),
        workdir=start,
        interactive=True,
        may_build=False,
        edf=edf_name(recipe),
    )
    return runtime.command(container)


class _JobPlan:
    """Plans a job whose processes srun, torchrun or the script itself start."""

    def __init__(self, launcher: ProcessLauncher) -> None:
        self.launcher = launcher
        self.recipe = launcher.recipe
        self.site = launcher.recipe.site
        self.runtime = runtime_of(self.recipe)
        self.request = launcher.request
        self.base = paths.start_folder(self.site)
        self.resources = Resources(self.request.nodes, launcher.gpus, launcher.tasks())

    def job(self) -> BatchJob:
        """Return the planned job."""
        checkpoint = from_user(self._checkpoint)
        is_address = paths.is_address(checkpoint)
        additions, image = self.launcher.additions(), self.runtime.image_of_job(self.request)
        size, tokens = self.resources, join(self.base, "/.builder-jupyter-XXXXXXXX")
        directives = slurm.directives(self.recipe, self.request, size) if self.site.slurm else []
        host_variables = tuple(name for name, value in self._env().items() if value is None)
        return BatchJob(
            recipe=self.recipe,
            launcher=self.launcher.name,
            resources=self.resources,
            setup=tuple(self.runtime.host_setup(additions, account=self.request.account)),
            image=image,
            container=self._container(self._command(), image),
            start=self.runtime.start(host_variables, additions),
            data=paths.data_path(self.request.data, self.base),
            unpacked=paths.unpacked_folder(self.site) if self.request.data else "",
            checkpoint=checkpoint if is_address else paths.host_path(checkpoint, self.base),
            checkpoint_is_folder=bool(self._checkpoint) and not is_address,
            master_address=self._master_address(),
            directives=tuple(directives),
            srun=self._srun(),
            chain=self.request.chain or 0,
            token_folder=tokens if self.request.jupyter else "",
            host_variables=host_variables,
        )

    @property
    def _checkpoint(self) -> str:
        """Folder or address of the checkpoints; a chain always has one. Empty: no checkpoints."""
        default = f"checkpoints/{self.recipe.name}" if self.request.chain else ""
        return self.request.checkpoint or default

    def _env(self) -> dict[str, str | None]:
        env = self.launcher.env()
        if self.request.data:
            env["BUILDER_DATA"] = ShellText("$BUILDER_DATA")
        if self._checkpoint:
            env["BUILDER_CHECKPOINT_DIR"] = ShellText("$BUILDER_CHECKPOINT_DIR")
            env["BUILDER_RESUME"] = ShellText("$BUILDER_RESUME")
        env |= self.request.env
        return env

    def _binds(self) -> tuple[str, ...]:
        binds: list[str] = [self.base]
        if self.request.data:
            binds.append(ShellText("$BUILDER_DATA"))
        if self._checkpoint and not paths.is_address(self._checkpoint):
            binds.append(ShellText("$BUILDER_CHECKPOINT_DIR"))
        binds += [parse_bind(bind, self.base) for bind in self.request.binds]
        return tuple(binds)

    def _command(self) -> tuple[str, ...]:
        """Return the command of each container; empty: the image's own."""
        # srun, or the runtime of a file, needs a command
        has_own_command = not self.runtime.suffix and self.launcher.name != "torchrun"
        if not self.request.command and has_own_command:
            return ()
        return self.launcher.wrap(self.request.command or self.recipe.cmd)

    def _workdir(self) -> str | None:
        """Return the folder to start in; None: the image's own."""
        folder = "." if self.request.command else paths.command_folder(self.recipe)
        if folder is not None:
            return self.base if folder == "." else paths.host_path(folder, self.base)
        return self.recipe.workdir if self.runtime.runs_sif else None

    def _container(self, command: tuple[str, ...], image: ImageFile) -> Invocation:
        gpus, node = self.resources.gpus, self.site.node.gpus
        counts = gpus == 0 or (gpus < node and self.site.slurm is None)  # else Slurm chooses them
        several = self.resources.nodes * self.resources.tasks > 1
        container = ContainerRequest(
            image=ShellText("$BUILDER_IMAGE") if image.reference else self.request.image,
            command=command,
            gpus=gpus if counts else None,
            binds=self._binds(),
            env=self._env(),
            env_file=paths.host_path(self.request.env_file, self.base),
            workdir=self._workdir(),
            ranks=several or self.launcher.uses_host_network,
            additions=self.launcher.additions(),
            may_build=False,
        )
        return self.runtime.command(container)

    def _srun(self) -> tuple[str, ...]:
        if self.site.slurm is None:
            return ()
        options = slurm.srun_options(self.site, self.resources, bind_cpus=self.launcher.binds_cpus)
        return (*options, *(option for part in self.launcher.additions() for option in part.srun))

    def _master_address(self) -> str:
        """Return the first node's name in the fast network; empty: its usual name.

        A job of one node does not need that network; on JUPITER the node cannot even use its usual
        address.
        """
        pattern = self.site.fabric.master_address
        if pattern and self.request.nodes == 1:
            return "127.0.0.1"
        return ShellText(pattern.replace("{host}", "${MASTER_ADDR}"))
