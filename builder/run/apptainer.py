"""Apptainer and SingularityCE, through their command line, on the image unpacked as a sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image
from builder.run.base import Completed, ImageCommand, Mount, execute, first_line
from builder.run.rootfs import cached_rootfs
from builder.settings import Settings
from builder.store import Store


class ApptainerRunner:
    """Runs images with apptainer or singularity, whichever is installed."""

    name = "apptainer"

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    @property
    def _tool(self) -> str | None:
        return shutil.which("apptainer") or shutil.which("singularity")

    def available(self) -> str | None:
        if not self._tool:
            return "not installed"
        done = execute([self._tool, "version"], timeout_s=30)
        return None if done.returncode == 0 else f"does not work: {first_line(done.stderr)}"

    def run(
        self,
        image: Image,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        gpu: GpuVendor = "none",
        timeout_s: float | None = None,
    ) -> Completed:
        config = ImageCommand.of(image)
        sandbox = cached_rootfs(image, self._settings, self._store)
        # --containall: nothing of the home or the host's /tmp gets in; values go by APPTAINERENV_, which takes commas and quotes as they are
        arguments = [str(self._tool), "exec", "--containall", "--no-eval", "--pwd", config.workdir]
        arguments += {"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}[gpu]
        for m in mounts:
            arguments += ["--bind", f"{m.source}:{m.target}:{'ro' if m.readonly else 'rw'}"]
        inside = {**config.env, **(env or {})}
        environ = dict(os.environ)
        for key, value in inside.items():
            environ[f"APPTAINERENV_{key}"] = environ[f"SINGULARITYENV_{key}"] = value
        done = execute([*arguments, str(sandbox), *config.entrypoint, *command], env=environ, timeout_s=timeout_s)
        if done.returncode == 255 and "FATAL" in done.stderr:
            fatal = next((x for x in done.stderr.splitlines() if "FATAL" in x), done.stderr)
            raise RunnerError(f"apptainer could not run the image: {fatal.split('FATAL:')[-1].strip()}", "see apptainer's configuration, or use another --runner")
        return done
