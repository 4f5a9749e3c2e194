"""podman, through its command line; also what podman-hpc builds on."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image
from builder.run.base import Completed, Mount, execute, first_line, image_layout
from builder.settings import Settings
from builder.store import Store

#: podman's own exit codes: it could not start the container.
_FAILED = (125, 126, 127)


class PodmanRunner:
    """Runs images with podman, rootless or as root."""

    name = "podman"

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    def available(self) -> str | None:
        tool = shutil.which("podman")
        if not tool:
            return "not installed"
        done = execute([tool, "info", "--format", "{{.Host.OCIRuntime.Name}}"], timeout_s=30)
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
        name = self._pulled(image)
        arguments = ["podman", "run", "--rm", "--network=none", "--pull=never"]
        if gpu == "nvidia":
            arguments += ["--device", "nvidia.com/gpu=all"]
        elif gpu == "amd":
            arguments += ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "keep-groups"]
        for key, value in (env or {}).items():
            arguments += ["--env", f"{key}={value}"]
        for m in mounts:
            arguments += ["--volume", f"{m.source}:{m.target}:{'ro' if m.readonly else 'rw'}"]
        done = execute([*arguments, name, *command], timeout_s=timeout_s)
        if done.returncode in _FAILED and "Error:" in done.stderr:
            raise RunnerError(f"podman could not run the image: {first_line(done.stderr)}", "see podman info, or use another --runner")
        return done

    def _pulled(self, image: Image) -> str:
        """The image's id in podman's storage: its config's digest without the algorithm."""
        name = image.config_descriptor.digest.partition(":")[2]
        if execute(["podman", "image", "exists", name], timeout_s=60).returncode == 0:
            return name
        with image_layout(image, self._settings, self._store) as folder:
            done = execute(["podman", "pull", "--quiet", f"oci:{folder}:image"], timeout_s=1800)
        if done.returncode:
            raise RunnerError(f"podman did not take the image: {first_line(done.stderr)}", "see podman info and its storage, or use another --runner")
        return done.stdout.strip().splitlines()[-1]
