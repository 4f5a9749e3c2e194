"""podman, through its command line; podman-hpc is based on it."""

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
from builder.oci.layout import write_layout
from builder.progress import working
from builder.run.base import (
    DEFAULT_OPTIONS,
    SHM_SIZE,
    ImageConfig,
    Runner,
    RunOptions,
    check_mounts,
    require_oci,
)
from builder.run.gpu import gpu_devices
from builder.run.process import Completed, execute, reason
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import write_atomic
from builder.store.folders import CacheFolders
from builder.store.walk import remove_tree

_HINT = "see podman info, or use another --runner"
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_LAYOUT_TAG = "image"


class PodmanRunner(Runner):
    """Runs images with podman, as root or rootless, with podman's own configuration (CONTAINERS_CONF ...)."""

    name = "podman"

    def available(self) -> str | None:
        if not shutil.which("podman"):
            return "not installed"
        done = execute(["podman", "info", "--format", "{{.Host.OCIRuntime.Name}}"], timeout_s=30)
        return None if done.returncode == 0 else f"does not work: {reason(done.stderr)}"

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        image = require_oci(image, "podman")
        ImageConfig.of(image).arguments(command, options.entrypoint)  # fails if there is nothing to run
        check_mounts(options.mounts, forbidden=',"\n')
        image_id = self._load(image)

        name = f"builder-run-{secrets.token_hex(8)}"
        gpu_arguments, gpu_env = _gpu_options(options.gpu)
        with variable_options({**gpu_env, **options.env}, self._settings.tmpdir) as (variables, environ):
            finished = False
            try:
                done = execute(
                    [
                        *("podman", "run", "--rm", "--name", name, "--pull", "never"),
                        *_arguments(options),
                        *gpu_arguments,
                        *variables,
                        image_id,
                        *command,
                    ],
                    env=environ,
                    timeout_s=options.timeout_s,
                    capture=options.capture,
                    on_line=options.on_line,
                )
                finished = not done.timed_out
            finally:
                if not finished:  # the container is no child of podman and outlives it
                    execute(["podman", "rm", "--force", "--time", "1", "--ignore", name], timeout_s=60)
        _check_started(done)
        return done

    def _load(self, image: Image) -> str:
        """Returns the image's id in podman's storage (its config's digest), and loads it if needed."""
        name = image.config_descriptor.digest.partition(":")[2]
        if execute(["podman", "image", "exists", name], timeout_s=60).returncode == 0:
            return name
        with (
            working(self._reporter, "loading the image into podman"),
            temporary_layout(image, self._settings, self._store) as layout,
        ):
            done = execute(["podman", "pull", "--quiet", layout])
        if done.returncode:
            raise RunnerError(f"podman could not load the image: {reason(done.stderr)}", _HINT)
        return done.stdout.strip().splitlines()[-1]


def _arguments(options: RunOptions) -> list[str]:
    arguments = ["--network", options.network, "--shm-size", SHM_SIZE]
    arguments += ["--log-driver", "none"]  # an endless output would fill the disk
    if not options.capture:
        arguments.append("--interactive")
    for mount in options.mounts:
        mode = ",readonly" if mount.readonly else ""
        arguments += [
            "--mount",
            f"type=bind,source={mount.source.absolute()},target={mount.target}{mode}",
        ]
    if options.workdir is not None:
        arguments += ["--workdir", options.workdir]
    if options.entrypoint is not None:
        arguments += ["--entrypoint", json.dumps(list(options.entrypoint))]
    return arguments


def _check_started(done: Completed) -> None:
    """Raises RunnerError if podman itself failed, and not the command in the container."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    if done.returncode == 125 or (done.returncode in (126, 127) and errors):
        raise RunnerError(
            f"podman could not run the image: {errors[-1] if errors else reason(done.stderr)}", _HINT
        )


def _gpu_options(gpu: GpuVendor) -> tuple[list[str], dict[str, str]]:
    """Options and variables that make the host's GPUs available in a container."""
    devices = gpu_devices(gpu)
    if not devices:
        return [], {}
    if gpu == "amd":
        options = [f"--device={device}" for device in devices]
        return [*options, "--group-add=keep-groups"], {}
    if _has_cdi():
        return ["--device=nvidia.com/gpu=all"], {}
    return [], {"NVIDIA_VISIBLE_DEVICES": "all"}  # for NVIDIA's OCI hook


def _has_cdi() -> bool:
    """Whether the host describes its NVIDIA GPUs by the Container Device Interface."""
    files = [path for folder in _CDI_FOLDERS for path in folder.glob("*.*")]
    return any("nvidia.com/gpu" in path.read_text(errors="replace") for path in files if path.is_file())


@contextlib.contextmanager
def variable_options(
    env: Mapping[str, str], folder: Path
) -> Iterator[tuple[list[str], dict[str, str] | None]]:
    """Returns options that set variables in the container, and the environment that podman itself needs for
    that.

    Values may be secret, so they are never on a command line. They are in a file in ``folder`` that only this
    user can read. A file has one line per variable, so values of several lines are passed through podman's
    own environment.

    Raises:
        RunnerError: A name cannot be that of a variable.
    """
    for name in env:
        if not re.fullmatch(r"[^=\s#\0][^=\s\0]*", name):
            raise RunnerError(f"{name!r} is not a valid name of an environment variable", "correct it")
    if not env:
        yield [], None
        return

    one_line = {name: value for name, value in env.items() if "\n" not in value}
    rest = {name: value for name, value in env.items() if "\n" in value}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as private:
        file = Path(private) / "env"
        text = "".join(f"{name}={value}\n" for name, value in one_line.items())
        write_atomic(file, text.encode(), mode=0o600)
        options = ["--env-file", str(file)]
        for name in rest:
            options += ["--env", name]
        yield options, {**os.environ, **rest} if rest else None


@contextlib.contextmanager
def temporary_layout(image: Image, settings: Settings, store: Store) -> Iterator[str]:
    """Writes the image into a temporary OCI layout (hard links to the cache) and returns ``oci:DIR:TAG``.

    Raises:
        ImageError: A layer is not on this machine.
    """
    folder = CacheFolders(settings.cache).tmp / f"layout-{os.getpid()}-{secrets.token_hex(6)}"
    # podman 4.3 makes an image name of the path, and refuses capitals and names like .cache in it: it gets a
    # plain link. Other users can neither guess the name nor write in the folder, although /tmp is shared.
    plain = Path("/tmp") / f"builder-{secrets.token_hex(8)}"  # noqa: S108
    try:
        write_layout(image, folder, _LAYOUT_TAG, store, durable=False)
        plain.mkdir(mode=0o700)
        (plain / "layout").symlink_to(folder)
        yield f"oci:{plain}/layout:{_LAYOUT_TAG}"
    finally:
        for path in (plain, folder):
            if path.exists():
                remove_tree(path)
