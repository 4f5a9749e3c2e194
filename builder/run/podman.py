"""podman, through its command line; also what podman-hpc builds on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.run.base import (
    SHM_SIZE,
    ImageConfig,
    Runner,
    RunOptions,
    check_mounts,
    gpu_devices,
    image_layout,
    refuse_sif,
)
from builder.run.process import Completed, execute, reason
from builder.store.files import write_atomic

_CURE = "see podman info, or use another --runner"
_CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))


class PodmanRunner(Runner):
    """Runs images with podman, as root or rootless. Its own configuration counts (CONTAINERS_CONF and the like)."""

    name = "podman"

    def available(self) -> str | None:
        if not shutil.which("podman"):
            return "not installed"
        done = execute(["podman", "info", "--format", "{{.Host.OCIRuntime.Name}}"], timeout_s=30)
        return None if done.returncode == 0 else f"does not work: {reason(done.stderr)}"

    def _run(self, image: Image | SifImage, command: Sequence[str], options: RunOptions) -> Completed:
        image = refuse_sif(image, "podman")
        ImageConfig.of(image).arguments(command, options.entrypoint)
        check_mounts(options.mounts, unfit=',"\n')
        name = f"builder-run-{secrets.token_hex(8)}"
        arguments = ["podman", "run", "--rm", "--name", name, "--pull", "never"]
        arguments += ["--network", options.network, "--shm-size", SHM_SIZE]
        arguments += [] if options.capture else ["--interactive"]
        devices, variables = _gpu_options(options.gpu)
        arguments += devices
        for m in options.mounts:
            arguments += [
                "--mount",
                f"type=bind,source={m.source.absolute()},target={m.target}"
                + (",readonly" if m.readonly else ""),
            ]
        if options.workdir is not None:
            arguments += ["--workdir", options.workdir]
        if options.entrypoint is not None:
            arguments += ["--entrypoint", json.dumps(list(options.entrypoint))]
        image_id = self._pulled(image)
        with _variables({**variables, **options.env}, self._settings.tmpdir) as (variable_options, environ):
            ended = False
            try:
                done = execute(
                    [*arguments, *variable_options, image_id, *command],
                    env=environ,
                    timeout_s=options.timeout_s,
                    capture=options.capture,
                )
                ended = not done.timed_out
            finally:
                if not ended:  # the container is not podman's child: it outlives it
                    execute(["podman", "rm", "--force", "--time", "1", "--ignore", name], timeout_s=60)
        said = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
        if done.returncode == 125 or (done.returncode in (126, 127) and said):
            raise RunnerError(
                f"podman could not run the image: {said[-1] if said else reason(done.stderr)}", _CURE
            )
        return done

    def _pulled(self, image: Image) -> str:
        """The image's id in podman's storage: its config's digest without the algorithm."""
        name = image.config_descriptor.digest.partition(":")[2]
        if execute(["podman", "image", "exists", name], timeout_s=60).returncode == 0:
            return name
        self._reporter.note("loading the image into podman")
        with image_layout(image, self._settings, self._store) as layout:
            done = execute(["podman", "pull", "--quiet", layout])
        if done.returncode:
            raise RunnerError(f"podman did not take the image: {reason(done.stderr)}", _CURE)
        return done.stdout.strip().splitlines()[-1]


def _gpu_options(gpu: GpuVendor) -> tuple[list[str], dict[str, str]]:
    """Options and variables that give a container the GPUs that the host has."""
    devices = gpu_devices(gpu)
    if not devices:
        return [], {}
    if gpu == "amd":
        return [word for d in devices for word in ("--device", str(d))] + ["--group-add", "keep-groups"], {}
    described = any(
        "nvidia.com/gpu" in p.read_text(errors="replace")
        for folder in _CDI
        for p in folder.glob("*.*")
        if p.is_file()
    )
    if described:
        return ["--device", "nvidia.com/gpu=all"], {}
    return [], {"NVIDIA_VISIBLE_DEVICES": "all"}  # NVIDIA's hook reads it


@contextlib.contextmanager
def _variables(env: Mapping[str, str], folder: Path) -> Iterator[tuple[list[str], dict[str, str] | None]]:
    """Options that pass variables by a file that only this user can read; podman's own environment for what no line can hold."""
    for name in env:
        if not re.fullmatch(r"[^=\s#\0][^=\s\0]*", name):
            raise RunnerError(f"{name!r} cannot be the name of a variable", "correct it")
    lines = {k: v for k, v in env.items() if "\n" not in v}
    rest = {k: v for k, v in env.items() if k not in lines}
    if not env:
        yield [], None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as private:
        file = Path(private) / "env"
        write_atomic(file, "".join(f"{k}={v}\n" for k, v in lines.items()).encode(), mode=0o600)
        options = ["--env-file", str(file), *(word for k in rest for word in ("--env", k))]
        yield options, {**os.environ, **rest} if rest else None
