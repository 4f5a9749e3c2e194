"""Apptainer and SingularityCE, through their command line: a SIF as it is, an OCI image unpacked as a sandbox, so that nothing is
compressed first."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.run.base import ImageConfig, Runner, RunOptions, check_mounts, gpu_devices
from builder.run.process import Completed, execute, reason
from builder.run.rootfs import cached_rootfs
from builder.sif.singularity import NOT_MOUNTED

_FLAT = "build it with 'sif: {layout: flat}' in the recipe, or have 'enable overlay' set in apptainer.conf"


class ApptainerRunner(Runner):
    """Runs images with apptainer or singularity, whichever is installed."""

    name = "apptainer"

    def available(self) -> str | None:
        tool = _tool()
        if tool is None:
            return "not installed"
        done = execute([tool, "version"], timeout_s=30)
        return None if done.returncode == 0 else f"does not work: {reason(done.stderr)}"

    def _run(self, image: Image | SifImage, command: Sequence[str], options: RunOptions) -> Completed:
        config = ImageConfig.of(image)
        words = config.arguments(command, options.entrypoint)
        check_mounts(options.mounts, unfit=":,\\")
        action = "exec"
        if isinstance(image, SifImage):
            config = replace(config, env={})  # its own scripts set it
            if options.entrypoint is None:
                action, words = "run", list(command)
        tool = _tool()
        if tool is None:
            raise RunnerError(
                "neither apptainer nor singularity is installed", "install one, or use another --runner"
            )
        if isinstance(image, SifImage):
            container = image.path.absolute()
        else:
            container = cached_rootfs(image, self._settings, self._store, self._reporter)
        # Nothing of the home, /tmp or the environment gets in. Values go by variables: they are secret, and may hold commas.
        arguments = [action, "--containall", "--cleanenv", "--pwd", options.workdir or config.workdir]
        if "--no-eval" in execute([tool, "exec", "--help"], timeout_s=30).stdout:
            arguments.append("--no-eval")  # a value is a value, not shell code
        if options.network == "none":
            arguments += ["--net", "--network", "none"]
        if gpu_devices(options.gpu):
            arguments.append("--nv" if options.gpu == "nvidia" else "--rocm")
        for m in options.mounts:
            arguments += ["--bind", f"{m.source.absolute()}:{m.target}:{'ro' if m.readonly else 'rw'}"]
        self._settings.tmpdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="run-", dir=self._settings.tmpdir) as scratch:
            # The home and temporary files in a folder: apptainer's own are 64 MiB by default, or not there by configuration.
            arguments += ["--workdir", scratch]
            for name in ("tmp", "var/tmp"):
                (Path(scratch) / "builder" / name).mkdir(parents=True)
                arguments += ["--bind", f"{scratch}/builder/{name}:/{name}"]
            arguments += [str(container), *words]
            done = execute(
                [tool, *arguments],
                env=_environ(tool, {**config.env, **options.env}),
                timeout_s=options.timeout_s,
                capture=options.capture,
            )
        if isinstance(image, SifImage) and done.returncode and NOT_MOUNTED in done.stderr:
            raise RunnerError(f"apptainer did not mount the overlay partitions of {image.path}", _FLAT)
        if done.returncode == 255 and (
            fatal := [line for line in done.stderr.splitlines() if "FATAL" in line]
        ):
            said = fatal[-1].split("FATAL:")[-1].strip()
            hint = "see apptainer's configuration, or use another --runner"
            if "overlay" in said.lower() and isinstance(image, SifImage):
                hint = _FLAT
            raise RunnerError(f"apptainer could not run the image: {said}", hint)
        return done


def _tool() -> str | None:
    return shutil.which("apptainer") or shutil.which("singularity")


def _environ(tool: str, inside: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, with the image's variables under the prefix that the tool knows, and nobody else's."""
    prefixes = ("APPTAINERENV_", "SINGULARITYENV_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    apptainer = Path(tool).resolve().name == "apptainer"
    return {**environ, **{f"{prefixes[0] if apptainer else prefixes[1]}{k}": v for k, v in inside.items()}}
