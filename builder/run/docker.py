"""Docker, through its SDK: the engine that DOCKER_HOST, DOCKER_CONTEXT or docker's own configuration names."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError
from builder.image.archive import docker_load
from builder.model import Image, SifImage
from builder.redact import redact
from builder.run.base import (
    SHM_SIZE,
    ImageConfig,
    Runner,
    RunOptions,
    check_mounts,
    gpu_devices,
    refuse_sif,
)
from builder.run.process import TIMED_OUT, Completed

_LABEL = "org.builder.run"


class DockerRunner(Runner):
    """Runs images with a Docker engine; loads those that it does not have, as ``builder-run:<digest12>``."""

    name = "docker"

    def available(self) -> str | None:
        where = "the default address"
        try:
            options = _engine()
            where = redact(options.get("base_url", os.environ.get("DOCKER_HOST") or where))
            with _client(timeout=5) as client:
                client.ping()
        except RunnerError as e:
            return e.message
        except Exception as e:  # errors of requests, urllib3 and the socket come through the SDK
            denied = "ermission denied" in str(e)
            return f"no engine answers at {where}" + (
                ": permission denied (are you in the group docker?)" if denied else ""
            )
        return None

    def _run(self, image: Image | SifImage, command: Sequence[str], options: RunOptions) -> Completed:
        import docker
        import requests
        from docker.types import LogConfig
        from docker.types import Mount as Bind

        image = refuse_sif(image, "docker")
        ImageConfig.of(image).arguments(command, options.entrypoint)
        check_mounts(options.mounts)
        try:
            with _client() as client:
                container = client.containers.create(
                    self._loaded(image, client),
                    list(command) or None,
                    entrypoint=None if options.entrypoint is None else list(options.entrypoint),
                    environment=dict(options.env),
                    mounts=[
                        Bind(m.target, str(m.source.absolute()), "bind", read_only=m.readonly)
                        for m in options.mounts
                    ],
                    working_dir=options.workdir,
                    network_mode=options.network,
                    shm_size=SHM_SIZE,
                    labels={_LABEL: image.digest},
                    log_config=LogConfig(type="json-file"),
                    **_gpu_options(options.gpu, client),
                )
                try:
                    return (
                        _finish(container, options.timeout_s)
                        if options.capture
                        else _follow(container, options.timeout_s)
                    )
                finally:
                    with contextlib.suppress(docker.errors.NotFound):
                        container.remove(force=True, v=True)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
            said = getattr(e, "explanation", None) or e
            raise RunnerError(
                f"docker could not run the image: {said}", "see the engine's log, or use another --runner"
            ) from None

    def _loaded(self, image: Image, client: Any) -> str:
        """The engine's id of the image: its config's digest; by our tag where it counts otherwise (containerd's store)."""
        import docker

        tag = f"builder-run:{image.digest.partition(':')[2][:12]}"
        for name in (image.config_descriptor.digest, tag):
            with contextlib.suppress(docker.errors.ImageNotFound):
                return str(client.images.get(name).id)
        self._reporter.note(f"loading the image into docker as {tag}")
        return docker_load(image, tag, client)


def _engine() -> dict[str, Any]:
    """Where the engine is, as the docker command line finds it; empty: DOCKER_HOST or the default, which the SDK knows itself.

    Raises:
        RunnerError: DOCKER_CONTEXT names a context that does not exist.
    """
    from docker.context import ContextAPI
    from docker.errors import DockerException

    if os.environ.get("DOCKER_HOST"):
        return {}
    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context = ContextAPI.get_context(name)
    except DockerException as e:
        raise RunnerError(
            f"docker's context {name or ''} cannot be read: {e}", "see docker context ls"
        ) from None
    if context is None:
        raise RunnerError(
            f"docker has no context named {name or 'as its configuration says'}", "see docker context ls"
        )
    if context.Name == "default" or not context.Host:
        return {}
    return {"base_url": context.Host, **({"tls": context.TLSConfig} if context.TLSConfig else {})}


@contextlib.contextmanager
def _client(timeout: int = 600) -> Iterator[Any]:
    import docker

    options = _engine()
    ssh = (options.get("base_url") or os.environ.get("DOCKER_HOST", "")).startswith("ssh://")
    client = (docker.DockerClient if options else docker.from_env)(
        timeout=timeout, use_ssh_client=ssh, **options
    )
    try:
        yield client
    finally:
        client.close()


def _gpu_options(gpu: GpuVendor, client: Any) -> dict[str, Any]:
    """What gives a container the GPUs. A host without any gets nothing, and the program inside says that it sees none."""
    devices = gpu_devices(gpu)
    if gpu == "nvidia" and (devices or "nvidia" in (client.info().get("Runtimes") or {})):
        from docker.types import DeviceRequest

        return {"device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])]}
    if gpu == "amd" and devices:
        groups = {p.stat().st_gid for d in devices for p in ([d] if not d.is_dir() else d.glob("render*"))}
        return {
            "devices": [f"{d}:{d}:rwm" for d in devices],
            "group_add": [str(g) for g in sorted(groups - {0})],
        }
    return {}


def _finish(container: Any, timeout_s: float | None) -> Completed:
    import requests

    started = time.monotonic()
    container.start()
    timed_out = False
    try:
        code = int(container.wait(timeout=timeout_s)["StatusCode"])
    except requests.exceptions.RequestException:
        if timeout_s is None or time.monotonic() - started < timeout_s:
            raise  # the engine went away
        container.kill()
        code, timed_out = TIMED_OUT, True
    out, err = (container.logs(stdout=s, stderr=not s).decode(errors="replace") for s in (True, False))
    return Completed(code, out, err, timed_out)


def _follow(container: Any, timeout_s: float | None) -> Completed:
    """The container's output as it comes, on this process's own."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(Exception):
            container.kill()

    container.client.api.timeout = None  # it may be silent for long
    stream = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    container.start()
    timer = threading.Timer(timeout_s, end) if timeout_s is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        for out, err in stream:
            for data, target in ((out, sys.stdout.buffer), (err, sys.stderr.buffer)):
                if data:
                    target.write(data)
                    target.flush()
        code = int(container.wait()["StatusCode"])
    finally:
        if timer:
            timer.cancel()
    return Completed(TIMED_OUT if late.is_set() else code, "", "", late.is_set())
