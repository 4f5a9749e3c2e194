"""``ray`` starts a cluster of containers on one machine and submits the command to it."""

from __future__ import annotations

from collections.abc import Sequence

from builder.config.recipe import Recipe
from builder.config.site import Ray
from builder.errors import UsageError
from builder.site.arguments import BindMount, is_volume, parse_bind, read_bind
from builder.site.containers import fill_gpu_index
from builder.site.hostsetup import host_setup
from builder.site.job import Files, RayJob, RayService
from builder.site.jobvariables import JobVariables
from builder.site.paths import (
    checkpoint_patterns,
    data_path,
    host_path,
    is_address,
    job_image,
    mlflow_variables,
    unpacked_folder,
)
from builder.site.request import JobRequest
from builder.site.shell import ShellText, for_ray

_HEAD = "ray-head"
_BASE = ShellText("$PWD")
#: The script's own files in all containers: Ray's token, and the runtime environment of the command.
_FOLDER = ShellText("$BUILDER_FOLDER:/builder:ro")
#: From 2.61 on, Ray starts no cluster without a token; others on the machine reach its ports, too.
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/builder/ray-token"}
#: Credentials of an S3 store, which containers get from the shell that runs the script.
_S3_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")


def _named_volumes(binds: Sequence[str]) -> list[BindMount]:
    found = [read_bind(parse_bind(bind, _BASE, volumes=True)) for bind in binds]
    return [bind for bind in found if is_volume(bind)]


class RayLauncher:
    """Plans a Ray cluster: one head, and one worker per GPU.

    Args:
        recipe: the target.
        request: what the job runs.
        gpus: GPUs of the machine that the cluster uses.
    """

    def __init__(self, recipe: Recipe, request: JobRequest, gpus: int) -> None:
        self.recipe = recipe
        self.request = request
        self.gpus = gpus

    def check(self) -> None:
        """Checks that the site can run the cluster.

        Raises:
            UsageError: it cannot; the message names the option.
        """
        title = self.recipe.site_title
        if self.recipe.site.ray is None:
            raise UsageError(f"{title}: the recipe has no 'ray:'", "use --launcher srun or torchrun")
        if self.request.nodes > 1 or self.request.chain:
            raise UsageError(
                f"{title}: a Ray cluster runs on one machine, without --nodes and --chain",
                "leave them out, or use a site with Slurm",
            )
        if self.request.resume_args or self.request.warmup:
            option = "--resume-args" if self.request.resume_args else "--warmup"
            raise UsageError(
                f"{title}: {option} is not for Ray jobs: Ray starts the processes of the command",
                "leave it out, or use --launcher torchrun",
            )

    def plan(self) -> RayJob:
        """Returns the planned job.

        Raises:
            UsageError: there is no command, or a value is not valid.
        """
        recipe, site, request = self.recipe, self.recipe.site, self.request
        if not request.command:
            raise UsageError("a Ray job needs a command", f"builder job {recipe.name} -- python train.py")
        variables = JobVariables(request, "ray", slurm=False, checkpoints=bool(request.checkpoint))
        data = data_path(request.data, _BASE)
        env, volumes = self.env(), self._volumes()
        return RayJob(
            target=recipe.name,
            title=recipe.site_title,
            gpus=self.gpus,
            program=site.runtime.command,
            image=job_image(recipe, request),
            head=self._head(env, volumes),
            workers=tuple(self._worker(index, env, volumes) for index in range(max(self.gpus, 1))),
            submit=self._submit(),
            command=tuple(for_ray(word) for word in variables.words(request.command)),
            volumes=tuple(dict.fromkeys(bind.source for bind in _named_volumes(request.binds))),
            runtime_env={"env_vars": self._runtime_variables()},
            dashboard_port=self._ray.dashboard_port,
            files=Files(
                data=data,
                unpacked=unpacked_folder(site) if data else "",
                checkpoint=self._checkpoint,
                checkpoint_is_folder=self._has_folder,
                patterns=checkpoint_patterns(request.patterns),
            ),
            setup=tuple(host_setup(site)),
        )

    def env(self) -> dict[str, str | None]:
        """Returns the variables of all containers."""
        request = self.request
        env: dict[str, str | None] = dict(_TOKEN)
        env |= {name: ShellText(value) for name, value in self.recipe.site.runtime.env.items()}
        env |= mlflow_variables(request)
        env |= request.env
        if self._has_folder:
            env["BUILDER_CHECKPOINT_DIR"] = ShellText("$BUILDER_CHECKPOINT_DIR")
            env["BUILDER_RESUME"] = ShellText("$BUILDER_RESUME")
        elif request.checkpoint:
            env["BUILDER_CHECKPOINT_DIR"] = self._checkpoint
            env |= dict.fromkeys(_S3_VARIABLES)
        if request.data:
            env["BUILDER_DATA"] = ShellText("$BUILDER_DATA")
        return env

    @property
    def _ray(self) -> Ray:
        ray = self.recipe.site.ray
        assert ray is not None
        return ray

    @property
    def _checkpoint(self) -> str:
        checkpoint = self.request.checkpoint
        return checkpoint if is_address(checkpoint) else host_path(checkpoint, _BASE)

    @property
    def _has_folder(self) -> bool:
        """Whether the checkpoints are in a folder of the machine."""
        return bool(self.request.checkpoint) and not is_address(self.request.checkpoint)

    def _runtime_variables(self) -> dict[str, str]:
        """Variables of the submitted command; credentials come from the containers instead."""
        variables = mlflow_variables(self.request)
        return {name: value for name, value in variables.items() if value is not None}

    def _volumes(self) -> tuple[str, ...]:
        request = self.request
        volumes: list[str] = [read_bind(ShellText(bind)).word for bind in self.recipe.site.runtime.binds]
        volumes += [parse_bind(bind, _BASE, volumes=True) for bind in request.binds]
        if self._has_folder:
            volumes.append(ShellText("$BUILDER_CHECKPOINT_DIR:$BUILDER_CHECKPOINT_DIR"))
        if request.data:
            volumes.append(ShellText("$BUILDER_DATA:$BUILDER_DATA:ro"))
        return (*volumes, _FOLDER)

    def _head(self, env: dict[str, str | None], volumes: tuple[str, ...]) -> RayService:
        ray = self._ray
        command = (
            *("ray", "start", "--head", f"--port={ray.port}"),
            *("--dashboard-host=0.0.0.0", f"--dashboard-port={ray.dashboard_port}"),
            f"--metrics-export-port={ray.metrics_port}",
            *("--num-cpus=0", "--num-gpus=0", "--block"),
        )
        return RayService(
            _HEAD,
            command,
            env,
            (*volumes, ShellText("$PWD:/job:ro")),
            # The engine chooses free ports of the machine, so that clusters do not meet at one.
            ports=tuple(f"127.0.0.1::{port}" for port in (ray.dashboard_port, ray.metrics_port)),
            shm_size=self.recipe.site.runtime.shm_size,
            env_file=self._env_file,
            # Ray gives a node 30 s to start, which a busy machine exceeds.
            restart="on-failure:3",
        )

    def _worker(self, index: int, env: dict[str, str | None], volumes: tuple[str, ...]) -> RayService:
        ray, runtime = self._ray, self.recipe.site.runtime
        address = f"--address={_HEAD}:{ray.port}"
        capacity = (f"--num-cpus={ray.worker_cpus}", f"--num-gpus={min(self.gpus, 1)}")
        own_env = {name: ShellText(fill_gpu_index(value, index)) for name, value in ray.worker_env.items()}
        devices = [ShellText(fill_gpu_index(device, index)) for device in ray.worker_devices]
        return RayService(
            f"ray-worker-{index}",
            ("ray", "start", address, *capacity, "--block"),
            {**env, **own_env},
            volumes,
            tuple(devices) if self.gpus else (),
            runtime.groups,
            runtime.shm_size,
            nvidia_ids=(str(index),) if ray.nvidia and self.gpus else (),
            env_file=self._env_file,
            restart="unless-stopped",
        )

    @property
    def _env_file(self) -> str:
        return host_path(self.request.env_file, _BASE)

    def _submit(self) -> tuple[str, ...]:
        ray = self._ray
        reserved: tuple[str, ...] = ("--entrypoint-num-gpus", str(min(self.gpus, ray.entrypoint_gpus)))
        reserved += ("--entrypoint-num-cpus", str(ray.entrypoint_cpus))
        if self.gpus > 1:
            # The training requests its workers from Ray. A command that reserves nothing runs on the head,
            # and so survives the end of a worker.
            reserved = ()
        return (
            *("ray", "job", "submit", f"--address=http://127.0.0.1:{ray.dashboard_port}"),
            *("--runtime-env", "/builder/runtime.json"),
            *reserved,
            *("--working-dir", "/job"),
        )
