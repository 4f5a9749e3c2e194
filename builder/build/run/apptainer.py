"""Apptainer and SingularityCE, through their command line.

A SIF is run directly. An OCI image is unpacked into the cache and run as a sandbox, which is faster
than to compress it into a SIF.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.core.errors import RunnerError
from builder.core.model import Image, SifImage
from builder.core.store.temporary import temporary_folder
from builder.formats.sif.singularity import NOT_MOUNTED
from builder.lock.config.site import GpuVendor

from .base import DEFAULT_OPTIONS, ImageConfig, Runner, RunOptions
from .failures import hint_for
from .gpu import device_groups, gpu_devices
from .identity import Identity, container_root
from .process import Completed, execute, reason
from .rootfs import cached_rootfs

_NOT_INSTALLED = "neither apptainer nor singularity is installed"
_FLAT_HINT = (
    "build it with 'sif: {layout: flat}' in the recipe, or set 'enable overlay' in apptainer.conf"
)
_DEFAULT_HINT = "see apptainer's configuration, or see builder doctor"
#: Apptainer's and SingularityCE's prefix of variables that are set in the container.
_PREFIXES = ("APPTAINERENV_", "SINGULARITYENV_")


def find_apptainer() -> str | None:
    """Return the path of apptainer, or else of singularity; None if neither is installed."""
    return shutil.which("apptainer") or shutil.which("singularity")


def apptainer_problem() -> str | None:
    """Return None if apptainer or singularity works on this host, else the reason."""
    tool = find_apptainer()
    if tool is None:
        return _NOT_INSTALLED
    done = execute([tool, "version"], timeout_s=30)
    return None if done.returncode == 0 else f"{tool} does not work: {reason(done)}"


class ApptainerRunner(Runner):
    """Runs images with apptainer, or else with singularity."""

    name = "apptainer"

    def available(self) -> str | None:
        return apptainer_problem()

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        config = ImageConfig.of(image)
        words = config.arguments(command, options.entrypoint)
        config.require_registered(self.name)
        for mount in options.mounts:
            mount.check()
        action = "exec"
        if isinstance(image, SifImage):
            config = replace(config, env={})  # the SIF's own scripts set its variables
            if options.entrypoint is None:
                action, words = "run", list(command)

        variables = {**config.env, **options.env}
        home = variables.pop("HOME", None)  # which the program itself does not set
        if words and home is not None:
            words = ["env", f"HOME={home}", *words]
        tool = find_apptainer()
        if tool is None:
            raise RunnerError(_NOT_INSTALLED, "install one, or see builder doctor")
        root = container_root(keep_root=options.keep_root)
        if isinstance(image, SifImage):
            container = image.path.absolute()
        else:
            container = cached_rootfs(image, self._work, owner=root)

        with temporary_folder(self._work.settings.tmpdir, 0o700) as scratch:
            arguments = [
                *(tool, action, "--pwd", options.workdir or config.workdir),
                *_isolation(tool, options),
                *_security(root, options.gpu),
                *_scratch_binds(scratch, root),
                str(container),
                *words,
            ]
            env = _environment(tool, variables)
            done = options.execute(arguments, env)
        _check_started(image, done)
        return done


def _isolation(tool: str, options: RunOptions) -> list[str]:
    """Return options for the host's mounts and GPUs; its home, /tmp and environment are hidden."""
    arguments = ["--containall", "--cleanenv"]
    # Without --no-eval (Apptainer 1.1, SingularityCE 3.10), the runtime evaluates values of
    # variables as shell code.
    if "--no-eval" in execute([tool, "exec", "--help"], timeout_s=30).stdout:
        arguments.append("--no-eval")
    if options.network == "none":
        arguments += ["--net", "--network", "none"]
    if gpu_devices(options.gpu):
        arguments.append("--nv" if options.gpu == "nvidia" else "--rocm")
    for mount in options.mounts:  # --bind has no escape for some characters
        paths = (f"source={mount.source.absolute()}", f"destination={mount.target}")
        fields = ['"' + path.replace('"', '""') + '"' for path in paths]
        arguments += ["--mount", ",".join(["type=bind", *fields, *["ro"] * mount.readonly])]
    return arguments


def _security(root: Identity, gpu: GpuVendor) -> list[str]:
    """Return options that make the container's user nobody on the host, where builder is root.

    Apptainer and SingularityCE leave /proc and /sys writable for root.
    """
    if root.is_own:
        return []
    groups = ":".join(map(str, (root.gid, *device_groups(gpu_devices(gpu)))))
    return ["--security", f"uid:{root.uid}", "--security", f"gid:{groups}"]


def _scratch_binds(scratch: Path, owner: Identity) -> list[str]:
    """Return options for home and temporary files in a folder: apptainer's tmpfs is too small."""
    arguments = ["--workdir", str(scratch)]
    for name in ("tmp", "var/tmp"):
        folder = scratch / "builder" / name
        folder.mkdir(parents=True)
        arguments += ["--bind", f"{folder}:/{name}"]
    (scratch / "home").mkdir(mode=0o700)  # apptainer's name
    owner.give(scratch)
    return arguments


def _environment(tool: str, inside: Mapping[str, str]) -> dict[str, str]:
    """Return this environment, with the container's variables under the prefix of the tool.

    They are not passed on the command line: values may be secret, and ``--env`` splits them at
    commas.
    """
    host = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
    prefix = _PREFIXES[0] if Path(tool).resolve().name == "apptainer" else _PREFIXES[1]
    return host | {f"{prefix}{name}": value for name, value in inside.items()}


def _check_started(image: Image | SifImage, done: Completed) -> None:
    """Raise RunnerError if apptainer itself failed, and not the command in the container."""
    if isinstance(image, SifImage) and done.returncode and NOT_MOUNTED in done.stderr:
        message = f"apptainer did not mount the overlay partitions of {image.path}"
        raise RunnerError(message, _FLAT_HINT)

    fatal = [line for line in done.stderr.splitlines() if "FATAL" in line]
    if done.returncode != 255 or not fatal:
        return
    message = fatal[-1].split("FATAL:")[-1].strip()
    hint = hint_for("apptainer", done.stderr) or _DEFAULT_HINT
    if isinstance(image, SifImage) and "overlay" in message.lower():
        hint = _FLAT_HINT
    raise RunnerError(f"apptainer could not run the image: {message}", hint)
