"""Jobs as plain data: what a person asks for, put together with what the recipe says of the site. Templates write it down."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from builder.config.recipe import Recipe
from builder.config.site import Additions, Launcher, Queue, QueueName, Site, seconds
from builder.errors import UsageError
from builder.site.command import PREFIX, check_gpus, evaluates, image_reference, parse_bind, site_command
from builder.site.shell import ShellText, from_user, join

#: The length of a piece of a chain when nobody says: a day, the longest that most sites like.
PIECE = "24:00:00"
_SUBMIT_DIR = ShellText("$SLURM_SUBMIT_DIR")
_WORD = re.compile(r"[\w.@+-]+")
#: Where each kind of job goes when the site has no queue of that name.
_INSTEAD: dict[QueueName, tuple[QueueName, ...]] = {
    "nodes": ("nodes", "node", "gpu", "cpu"),
    "node": ("node", "gpu"),
    "gpu": ("gpu", "node"),
    "cpu": ("cpu",),
    "interactive": ("interactive", "gpu", "cpu"),
    "build": ("build", "cpu"),
}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a person asks for. ``gpus`` and ``tasks`` are those of one node; empty texts and None leave it to the recipe."""

    command: tuple[str, ...] = ()
    nodes: int = 1
    gpus: int | None = None
    tasks: int | None = None
    time: str = ""
    account: str = ""
    data: str = ""
    chain: int | None = None
    checkpoint: str = ""
    mlflow: str = ""
    launcher: Launcher | None = None
    image: str = ""
    name: str = ""
    binds: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)
    check_fabric: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A job, resolved. Texts may be :class:`~builder.site.shell.ShellText`, with variables of the machine that runs the script."""

    target: str
    title: str
    slurm: bool
    nodes: int
    gpus: int
    tasks: int
    """Processes on a node."""
    launcher: Launcher
    directives: tuple[str, ...]
    """Options of sbatch."""
    modules: tuple[str, ...]
    setup: tuple[str, ...]
    image: str
    image_is_file: bool
    container: tuple[str, ...]
    """The runtime's command line up to the image."""
    command: tuple[str, ...]
    srun: tuple[str, ...] = ()
    master_port: str = "29500"
    """A number, or an arithmetic expression of bash."""
    unpacked: str = ""
    """The folder for the unpacked data."""
    local_managed: bool = False
    data: str = ""
    checkpoint: str = ""
    checkpoint_is_folder: bool = False
    chain: int = 0
    folders: tuple[str, ...] = ()
    hand_on: tuple[str, ...] = ()
    """Beginnings of the names of variables that are to pass a clean environment ..."""
    hand_on_prefix: str = ""
    """... under this prefix."""
    hand_on_evaluated: bool = False
    """Their values are read as a shell would."""
    fabric_line: str = ""
    """What the output must hold."""

    last_word: str = ShellText("$BUILDER_IMAGE")
    """What stands before the command."""


@dataclass(frozen=True, slots=True)
class RayService:
    """A container of a Ray cluster, as a compose file has it."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str | None]
    volumes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    shm_size: str = ""
    ports: tuple[str, ...] = ()
    nvidia_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RayJob:
    """A Ray cluster of containers on one machine, and a command submitted to it."""

    target: str
    title: str
    gpus: int
    program: str
    image: str
    head: RayService
    workers: tuple[RayService, ...]
    submit: tuple[str, ...]
    """``ray job submit`` and its options."""
    command: tuple[str, ...]
    runtime_env: Mapping[str, object]
    dashboard_port: int
    unpacked: str = ""
    data: str = ""
    setup: tuple[str, ...] = ()

    @property
    def services(self) -> tuple[RayService, ...]:
        return (self.head, *self.workers)


def plan_job(recipe: Recipe, request: JobRequest) -> Job | RayJob:
    """A job of a target.

    Raises:
        UsageError: what is asked for cannot be had on the site, or cannot be read; the message names the option.
    """
    site = recipe.site
    launcher = request.launcher or site.launcher
    gpus = _check(recipe, request, launcher)
    if launcher == "ray":
        return _ray_job(recipe, request, gpus)
    tasks = 1 if launcher == "torchrun" else gpus or request.tasks or site.node.tasks
    slurm = site.slurm is not None
    base = _SUBMIT_DIR if slurm else ShellText("$PWD")
    additions: list[Additions] = []
    if launcher == "mpi" and site.mpi:
        additions.append(site.mpi)
    if request.nodes > 1:
        additions.append(site.fabric)
    checkpoint = request.checkpoint or (f"checkpoints/{recipe.name}" if request.chain else "")
    is_folder = "://" not in checkpoint
    env: dict[str, str | None] = {}
    if slurm and launcher != "torchrun":
        for name, variable in (("RANK", "PROCID"), ("LOCAL_RANK", "LOCALID"), ("WORLD_SIZE", "NTASKS")):
            env[name] = ShellText(f"$SLURM_{variable}")
    elif launcher != "torchrun":
        env |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    env |= {"MASTER_ADDR": ShellText("$MASTER_ADDR"), "MASTER_PORT": ShellText("$MASTER_PORT")}
    binds: list[str] = [base] if request.command else []
    if request.data:
        env["BUILDER_DATA"] = ShellText("$BUILDER_DATA")
        binds.append(ShellText("$BUILDER_DATA"))
    if checkpoint:
        env["BUILDER_CHECKPOINT_DIR"] = ShellText("$BUILDER_CHECKPOINT_DIR")
        env["BUILDER_RESUME"] = ShellText("$BUILDER_RESUME")
        binds += [ShellText("$BUILDER_CHECKPOINT_DIR")] if is_folder else []
    env |= _mlflow(request)
    check = site.fabric.check if request.check_fabric else None
    if check:
        env |= {k: ShellText(v) for k, v in check.env.items()}
    env |= request.env
    command = request.command or recipe.cmd
    if launcher == "torchrun":
        command = (*_torchrun(request.nodes, gpus or request.tasks or site.node.tasks), *command)
    elif not request.command and not site.runtime.takes_sif:
        command = ()  # the image's own
    several = request.nodes * tasks > 1 or launcher == "torchrun"
    image = ShellText("$BUILDER_IMAGE")
    workdir = (
        base
        if request.command
        else recipe.workdir
        if site.runtime.takes_sif and recipe.workdir != "/"
        else None
    )
    words = site_command(
        recipe,
        image,
        command,
        gpus=gpus if gpus < site.node.gpus else None,
        binds=[*binds, *(parse_bind(b, base) for b in request.binds)],
        env=env,
        workdir=workdir,
        ranks=several,
        additions=additions,
        options=_podman_env(site) if slurm else (),
    )
    userns = site.runtime.kind == "userns"
    where = len(words) - len(command) - (1 if command or not userns else 0)  # the image, or "--"
    clean = site.runtime.clean_env
    return Job(
        target=recipe.name,
        title=site.title or recipe.name,
        slurm=slurm,
        nodes=request.nodes,
        gpus=gpus,
        tasks=tasks,
        launcher=launcher,
        directives=tuple(_directives(recipe, request, gpus, tasks, launcher)) if slurm else (),
        modules=(*site.modules, *(m for a in additions for m in a.modules)),
        setup=(*site.setup, *(s for a in additions for s in a.setup)),
        image=_image(recipe, request) if not userns else "",
        image_is_file=site.runtime.takes_sif,
        last_word="--" if userns else image,
        container=tuple(words[:where]),
        command=tuple(command),
        srun=tuple(_srun(site, request, gpus, launcher)) if slurm else (),
        master_port=_port(site, request, gpus),
        unpacked=_unpacked(site) if request.data else "",
        local_managed=site.local_managed,
        data=_data(request.data, base),
        checkpoint=_host_path(checkpoint, base) if is_folder else checkpoint,
        checkpoint_is_folder=bool(checkpoint) and is_folder,
        chain=request.chain or 0,
        folders=tuple(ShellText(f) for f in site.runtime.folders),
        hand_on=(*site.runtime.pass_env, *(k for k, v in env.items() if v is None))
        if clean and slurm
        else (),
        hand_on_prefix=PREFIX.get(site.runtime.kind, "") if clean else "",
        hand_on_evaluated=clean and evaluates(site),
        fabric_line=check.line if check else "",
    )


def salloc(recipe: Recipe, request: JobRequest) -> tuple[list[str], list[str]]:
    """Two command lines: the one that gets a node with a terminal, and the one that starts the image there.

    Raises:
        UsageError: as :func:`plan_job`, or the site has no scheduler.
    """
    site = recipe.site
    if site.slurm is None:
        raise UsageError(
            f"{site.title or recipe.name} has no scheduler: its machines are interactive",
            f"builder run {recipe.name} -- bash",
        )
    gpus = _check(recipe, request, "srun")
    queue = _queue(site, "interactive")
    options = _directives(recipe, replace(request, chain=None), gpus, 1, "srun", queue, batch=False)
    mounts = [parse_bind(b, _SUBMIT_DIR) for b in request.binds]
    command = site_command(
        recipe,
        _image(recipe, request),
        request.command or ("bash",),
        gpus=gpus if gpus < site.node.gpus else None,
        binds=mounts,
        env=request.env,
        interactive=True,
    )
    there = [] if site.slurm.salloc_on_node else ["srun", "--pty", *site.slurm.srun]
    return ["salloc", *options], [*there, *command]


# checks ---------------------------------------------------------------------------------------------------------------


def _check(recipe: Recipe, request: JobRequest, launcher: Launcher) -> int:
    """Refuses what the site cannot do; gives the GPUs of one node."""
    site, title = recipe.site, recipe.site.title or recipe.name
    if request.nodes < 1:
        raise UsageError(f"--nodes {request.nodes} cannot be", "write a number from 1")
    if request.chain is not None and request.chain < 1:
        raise UsageError(
            f"--chain {request.chain} cannot be",
            "write the number of pieces, from 1; leave it out for a single job",
        )
    if request.tasks is not None and request.tasks < 1:
        raise UsageError(
            f"--tasks {request.tasks} cannot be", "write the number of processes on a node, from 1"
        )
    check_gpus(recipe, request.gpus)
    whole = site.node.gpus if request.nodes > 1 else min(1, site.node.gpus)
    gpus = whole if request.gpus is None else request.gpus
    if request.tasks is not None and gpus:
        raise UsageError("--tasks with GPUs cannot be: there is one process for each GPU", "say --gpus N")
    for option, value in (("--account", request.account), ("--name", request.name)):
        if value and not _WORD.fullmatch(value):
            raise UsageError(f"{option} {value!r} cannot be", "write letters, digits and . _ + - @ only")
    if launcher == "mpi" and site.mpi is None:
        raise UsageError(
            f"{title}: the recipe has no 'mpi:'",
            f"add the host's MPI to site.mpi in {recipe.source}, or use --launcher srun",
        )
    if launcher == "ray":
        if site.ray is None:
            raise UsageError(f"{title}: the recipe has no 'ray:'", "use --launcher srun or torchrun")
        if request.nodes > 1 or request.chain:
            raise UsageError(
                f"{title}: the Ray cluster is one machine's: neither --nodes nor --chain",
                "leave them out, or use Slurm",
            )
    elif site.slurm is None:
        for option, given in (
            ("--nodes", request.nodes > 1),
            ("--chain", request.chain),
            ("--launcher mpi", launcher == "mpi"),
        ):
            if given:
                raise UsageError(
                    f"{title} has no scheduler, which {option} needs",
                    "leave it out, or add site.slurm to the recipe",
                )
        if launcher == "srun" and (processes := gpus or request.tasks or site.node.tasks) > 1:
            raise UsageError(
                f"{title} has no scheduler to start {processes} processes", "use --launcher torchrun"
            )
    elif site.slurm.account == "required" and not request.account:
        example = f", such as {site.slurm.account_example}" if site.slurm.account_example else ""
        raise UsageError(f"{title} wants an account for every job", f"say --account NAME{example}")
    elif site.node.gpus and not gpus and site.slurm.queues and "cpu" not in site.slurm.queues:
        raise UsageError(
            f"{title}: the recipe has no queue for jobs without GPUs",
            "ask for GPUs, or add site.slurm.queues.cpu",
        )
    if request.time:
        try:
            seconds(request.time)
        except ValueError as e:
            raise UsageError(f"--time: {e}", "write it as Slurm does: HH:MM:SS, or D-HH:MM") from None
    if request.check_fabric and site.fabric.check is None:
        raise UsageError(
            f"{title}: the recipe does not say how to see the network's plugin", "add site.fabric.check to it"
        )
    if request.check_fabric and request.nodes == 1:
        raise UsageError("--check-fabric needs more than one node", "say --nodes 2")
    return gpus


def _mlflow(request: JobRequest) -> dict[str, str | None]:
    if not request.mlflow:
        return {}
    parts = urlsplit(request.mlflow)
    if "@" in parts.netloc:
        raise UsageError(
            "--mlflow: the address holds a user or password, which a job script is no place for",
            "give it without; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the job is submitted",
        )
    secret = {
        "MLFLOW_TRACKING_USERNAME": None,
        "MLFLOW_TRACKING_PASSWORD": None,
        "MLFLOW_TRACKING_TOKEN": None,
    }
    return {"MLFLOW_TRACKING_URI": request.mlflow, **secret}


def _data(text: str, base: str) -> str:
    """The tar's path on the site.

    Raises:
        UsageError: it lies here, and is no tar.
    """
    if not text:
        return ""
    path = Path(text).expanduser()
    if path.is_dir():
        raise UsageError(
            f"--data {text}: is a folder, not a tar",
            f"pack it: tar -cf {path.name or 'data'}.tar -C {text} .",
        )
    if path.is_file() and not _is_tar(path):
        raise UsageError(f"--data {text}: is not a tar", "give a .tar, .tar.gz, .tar.xz or .tar.zst file")
    return _host_path(text, base)


def _is_tar(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(4) == b"\x28\xb5\x2f\xfd":
                import zstandard

                file.seek(0)
                with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                    return stream.read(512)[257:262] == b"ustar"
        return tarfile.is_tarfile(path)
    except PermissionError:
        return True  # the job will see
    except Exception:  # a damaged archive: each decompressor has errors of its own
        return False


def _host_path(text: str, base: str) -> str:
    """A path on the site: relative ones start where the job is submitted, variables are the job's."""
    if not text:
        return ""
    word = from_user(f"$HOME{text[1:]}" if text.startswith("~/") else text)
    return word if word.startswith(("/", "$")) else join(base, "/", word)


def _image(recipe: Recipe, request: JobRequest) -> str:
    if request.image:
        takes_sif = recipe.site.runtime.takes_sif and "://" not in request.image
        return (
            _host_path(request.image, _SUBMIT_DIR if recipe.site.slurm else ShellText("$PWD"))
            if takes_sif
            else request.image
        )
    return image_reference(recipe, request.account)


def _unpacked(site: Site) -> str:
    return ShellText(f"{site.local or '/tmp/$USER-builder'}/data")  # noqa: S108  a folder of the job's own on the node


# Slurm ----------------------------------------------------------------------------------------------------------------


def _kind(site: Site, request: JobRequest, gpus: int) -> QueueName:
    if not gpus:
        return "cpu"
    if gpus < site.node.gpus:
        return "gpu"
    return "nodes" if request.nodes > 1 else "node"


def _queue(site: Site, kind: QueueName) -> Queue:
    assert site.slurm is not None
    return next((site.slurm.queues[k] for k in _INSTEAD[kind] if k in site.slurm.queues), Queue())


def _directives(
    recipe: Recipe,
    request: JobRequest,
    gpus: int,
    tasks: int,
    launcher: Launcher,
    queue: Queue | None = None,
    *,
    batch: bool = True,
) -> list[str]:
    site, slurm = recipe.site, recipe.site.slurm
    assert slurm is not None
    queue = queue or _queue(site, _kind(site, request, gpus))
    out = [f"--job-name={request.name or recipe.name}"] if batch else []
    for name, value in (
        ("account", request.account),
        ("partition", queue.partition),
        ("qos", queue.qos),
        ("constraint", queue.constraint),
    ):
        out += [f"--{name}={value}"] if value else []
    out += [f"--nodes={request.nodes}", f"--ntasks-per-node={tasks}"]
    out.append(f"--cpus-per-task={queue.cpus_per_task or _cpus(site, request, gpus, tasks, launcher)}")
    if gpus:
        asked = queue.gpus or slurm.gpus
        out.append(_filled(asked, request, gpus))
    out += _memory(site, queue, gpus)
    out.append(f"--time={_time(recipe, request, queue)}")
    out += [_filled(o, request, gpus) for o in queue.options]
    if batch:
        out += [f"--array=1-{request.chain}%1"] if request.chain else []
        out.append("--output=%x-%A_%a.out" if request.chain else "--output=%x-%j.out")
    return out


def _filled(option: str, request: JobRequest, gpus: int) -> str:
    for name, value in (("gpus", gpus), ("total", gpus * request.nodes), ("nodes", request.nodes)):
        option = option.replace(f"{{{name}}}", str(value))
    return option


def _cpus(site: Site, request: JobRequest, gpus: int, tasks: int, launcher: Launcher) -> int:
    if gpus:
        return site.node.gpu_cores * (gpus if launcher == "torchrun" else gpus // tasks or 1)
    return max(site.node.cores // tasks, 1)


def _memory(site: Site, queue: Queue, gpus: int) -> list[str]:
    slurm, node = site.slurm, site.node
    assert slurm is not None
    if queue.memory:
        return [f"--mem={queue.memory}"]
    if gpus == node.gpus and node.memory:
        return [f"--mem={node.memory}"]
    if gpus and node.memory_per_gpu:
        if slurm.memory_by == "gpu":
            return [f"--mem-per-gpu={node.memory_per_gpu}"]
        found = re.fullmatch(r"(\d+)(\D*)", node.memory_per_gpu)
        assert found is not None
        return [f"--mem={int(found[1]) * gpus}{found[2]}"]
    return []


def _time(recipe: Recipe, request: JobRequest, queue: Queue) -> str:
    slurm = recipe.site.slurm
    assert slurm is not None
    longest = queue.max_time or slurm.max_time
    usual = queue.time or slurm.time
    if request.chain:
        usual = min(PIECE, longest, key=seconds)
    time = request.time or usual
    if seconds(time) > seconds(longest):
        pieces = -(-seconds(time) // seconds(longest))
        raise UsageError(
            f"--time {time} is longer than {recipe.site.title or recipe.name} allows here ({longest})",
            f"run it in pieces that pick up the newest checkpoint: --time {longest} --chain {pieces}",
        )
    return time


def _srun(site: Site, request: JobRequest, gpus: int, launcher: Launcher) -> list[str]:
    slurm = site.slurm
    assert slurm is not None
    queue = _queue(site, _kind(site, request, gpus))
    bind = (
        [f"--cpu-bind={site.node.cpu_bind}"] if gpus and gpus == site.node.gpus and launcher == "srun" else []
    )
    return [*(bind if site.node.cpu_bind else []), *slurm.srun, *queue.srun]


def _port(site: Site, request: JobRequest, gpus: int) -> str:
    """The port that ranks meet at; one of its own where other jobs may run on the same node."""
    port = site.slurm.master_port if site.slurm else 29500
    alone = request.nodes > 1 or gpus == site.node.gpus
    return str(port) if alone or site.slurm is None else f"$(({port} + SLURM_JOB_ID % 1000))"


def _torchrun(nodes: int, processes: int) -> list[str]:
    head = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={processes}"]
    if nodes > 1:
        head.append(ShellText("--node-rank=$SLURM_NODEID"))
    return [
        *head,
        ShellText("--master-addr=$MASTER_ADDR"),
        ShellText("--master-port=$MASTER_PORT"),
        "--no-python",
    ]


def _podman_env(site: Site) -> list[str]:
    """podman lets none of the host's variables in but by name; a name may end with an asterisk."""
    if site.runtime.kind not in ("podman", "podman-hpc"):
        return []
    return [w for name in site.runtime.pass_env for w in ("-e", f"{name}*" if name.endswith("_") else name)]


# Ray ------------------------------------------------------------------------------------------------------------------


def _ray_job(recipe: Recipe, request: JobRequest, gpus: int) -> RayJob:
    site, ray, runtime = recipe.site, recipe.site.ray, recipe.site.runtime
    assert ray is not None
    if not request.command:
        raise UsageError("a Ray job needs a command", f"builder job {recipe.name} -- python train.py")
    mlflow = _mlflow(request)
    env: dict[str, str | None] = {
        **{k: ShellText(v) for k, v in runtime.env.items()},
        **mlflow,
        **request.env,
    }
    job_env: dict[str, str] = {k: v for k, v in mlflow.items() if v is not None}
    volumes = [str(b) for b in (*runtime.binds, *(parse_bind(b, ShellText("$PWD")) for b in request.binds))]
    base = ShellText("$PWD")
    if request.checkpoint:
        is_folder = "://" not in request.checkpoint
        place = _host_path(request.checkpoint, base) if is_folder else request.checkpoint
        env |= {"BUILDER_CHECKPOINT_DIR": place, "AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        env |= {"AWS_ENDPOINT_URL": None, "AWS_DEFAULT_REGION": None}
        volumes += [join(place, ":", place)] if is_folder else []
    data = _data(request.data, base)
    if data:
        env["BUILDER_DATA"] = ShellText("$BUILDER_DATA")
        volumes.append(ShellText("$BUILDER_DATA:$BUILDER_DATA:ro"))
    start = ("ray", "start")
    head = RayService(
        "ray-head",
        (
            *start,
            "--head",
            f"--port={ray.port}",
            "--dashboard-host=0.0.0.0",
            f"--dashboard-port={ray.dashboard_port}",
            f"--metrics-export-port={ray.metrics_port}",
            "--num-cpus=0",
            "--num-gpus=0",
            "--block",
        ),
        env,
        (*volumes, ShellText("$PWD:/job:ro"), ShellText("$BUILDER_FOLDER:/builder:ro")),
        ports=(
            f"127.0.0.1:{ray.dashboard_port}:{ray.dashboard_port}",
            f"127.0.0.1:{ray.metrics_port}:{ray.metrics_port}",
        ),
        shm_size=runtime.shm_size,
    )
    workers = []
    for index in range(max(gpus, 1)):

        def fill(words: Sequence[str], index: int = index) -> tuple[str, ...]:
            return tuple(
                ShellText(w.replace("{index}", str(index)).replace("{render}", str(128 + index)))
                for w in words
            )

        workers.append(
            RayService(
                f"ray-worker-{index}",
                (
                    *start,
                    f"--address=ray-head:{ray.port}",
                    f"--num-cpus={ray.worker_cpus}",
                    f"--num-gpus={min(gpus, 1)}",
                    "--block",
                ),
                {**env, **dict(zip(ray.worker_env, fill(list(ray.worker_env.values())), strict=True))},
                tuple(volumes),
                fill(ray.worker_devices) if gpus else (),
                runtime.groups,
                runtime.shm_size,
                nvidia_ids=(str(index),) if ray.nvidia and gpus else (),
            )
        )
    # With several GPUs the training asks Ray for its workers itself: the command must not keep one for nothing.
    entry_gpus = ray.entrypoint_gpus if gpus == 1 else 0
    submit = (
        "ray",
        "job",
        "submit",
        f"--address=http://127.0.0.1:{ray.dashboard_port}",
        "--runtime-env",
        "/builder/runtime.json",
        "--entrypoint-num-gpus",
        str(entry_gpus),
        "--entrypoint-num-cpus",
        str(ray.entrypoint_cpus),
        "--working-dir",
        "/job",
    )
    return RayJob(
        target=recipe.name,
        title=site.title or recipe.name,
        gpus=gpus,
        program=runtime.command,
        image=_image(recipe, request),
        head=head,
        workers=tuple(workers),
        submit=submit,
        command=request.command,
        runtime_env={"env_vars": job_env},
        dashboard_port=ray.dashboard_port,
        unpacked=_unpacked(site) if data else "",
        data=data,
        setup=site.setup,
    )
