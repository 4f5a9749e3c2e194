"""Docker, through its SDK: the engine that DOCKER_HOST or the current context names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.model import Image
from builder.run.base import TIMED_OUT, Completed, Mount

SHM_SIZE = "1g"


class DockerRunner:
    """Runs images with the Docker engine; loads them when the engine does not have them."""

    name = "docker"

    def available(self) -> str | None:
        try:
            with self._client(timeout=5) as client:
                client.ping()
        except Exception as e:  # the SDK lets errors of requests and of the socket through
            return f"no engine answers ({type(e).__name__})"
        return None

    @contextlib.contextmanager
    def _client(self, timeout: float = 600) -> Any:
        import docker

        client = docker.from_env(timeout=timeout)
        try:
            yield client
        finally:
            client.close()

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
        import docker
        import requests
        from docker.types import DeviceRequest
        from docker.types import Mount as DockerMount

        options: dict[str, Any] = {}
        if gpu == "nvidia":
            options["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
        elif gpu == "amd":
            options["devices"] = [d for d in ("/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm") if Path(d.split(":")[0]).exists()]
            options["group_add"] = ["video"]
        try:
            with self._client() as client:
                container = client.containers.create(
                    self._loaded(image, client),
                    list(command),
                    environment=dict(env or {}),
                    mounts=[DockerMount(m.target, str(m.source), "bind", read_only=m.readonly) for m in mounts],
                    network_mode="none",
                    shm_size=SHM_SIZE,
                    **options,
                )
                try:
                    container.start()
                    try:
                        code = int(container.wait(timeout=timeout_s)["StatusCode"])
                    except requests.exceptions.RequestException:
                        container.kill()
                        code = TIMED_OUT
                    out = container.logs(stdout=True, stderr=False).decode(errors="replace")
                    err = container.logs(stdout=False, stderr=True).decode(errors="replace")
                finally:
                    container.remove(force=True)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
            raise RunnerError(f"docker could not run the image: {e}", "see the engine's log, or use another --runner") from None
        return Completed(code, out, err, timed_out=code == TIMED_OUT)

    def _loaded(self, image: Image, client: Any) -> str:
        """The engine's id of the image, which is its config's digest."""
        import docker

        from builder.image.archive import docker_load

        with contextlib.suppress(docker.errors.ImageNotFound):
            return str(client.images.get(image.config_descriptor.digest).id)
        return docker_load(image, f"builder-run:{image.digest.partition(':')[2][:12]}", client)
