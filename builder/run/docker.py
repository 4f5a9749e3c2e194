"""Docker, through its SDK: the engine that DOCKER_HOST, DOCKER_CONTEXT or docker's own configuration names.

builder uses the SDK and not the docker program: connecting (contexts, TLS, ssh) is shared with the docker
engine, ``build --load`` and ``pull``, and works where only a socket is available. docker does not accept the
podman runner's command line: entry points of several words, multi-line variables and the removal of
containers after a timeout differ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.config.recipe import GpuVendor
from builder.errors import BuilderError, RunnerError
from builder.image.archive import docker_load
from builder.model import Image
from builder.progress import QUIET, Reporter, working
from builder.redact import redact
from builder.run.base import SHM_SIZE, RunOptions, check_mounts
from builder.run.failures import hint_for
from builder.run.gpu import device_groups, gpu_devices
from builder.run.leftovers import REPOSITORY, new_tag
from builder.run.process import MAX_OUTPUT, TIMED_OUT, Completed
from builder.run.storage import EngineRunner, Storage, container_name

_SOCKET = Path("/var/run/docker.sock")


# connecting to the engine -----------------------------------------------------------------------------------


def docker_address() -> dict[str, Any]:
    """Returns the SDK's arguments for the engine that the docker command line would use.

    Empty for DOCKER_HOST and the default address, which the SDK finds itself.

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
            f"docker's context {name or ''} cannot be read: {e}", "list the contexts: docker context ls"
        ) from None
    if context is None:
        raise RunnerError(
            f"docker has no context named {name or 'in its configuration'}",
            "list the contexts: docker context ls",
        )
    if context.Name == "default" or not context.Host:
        return {}
    tls = {"tls": context.TLSConfig} if context.TLSConfig else {}
    return {"base_url": context.Host, **tls}


@contextlib.contextmanager
def docker_client(timeout_s: int = 600) -> Iterator[Any]:
    """Opens a ``docker.DockerClient`` of the engine, and closes it at the end. ``timeout_s`` is that of each
    request.

    Raises:
        RunnerError: DOCKER_CONTEXT names a context that does not exist.
    """
    import docker

    address = docker_address()
    ssh = (address.get("base_url") or os.environ.get("DOCKER_HOST", "")).startswith("ssh://")
    connect = docker.DockerClient if address else docker.from_env
    client = connect(timeout=timeout_s, use_ssh_client=ssh, **address)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def docker_errors(error: Callable[[str], BuilderError]) -> Iterator[None]:
    """Raises ``error(message)`` in place of errors of the SDK and of its HTTP library."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        raise error(str(getattr(e, "explanation", None) or e)) from None


# running ----------------------------------------------------------------------------------------------------


class DockerRunner(EngineRunner):
    """Runs images with a Docker engine. Loads missing images, and removes them when the process ends."""

    name = "docker"

    def available(self) -> str | None:
        return docker_problem()

    @contextlib.contextmanager
    def storage(self) -> Iterator[DockerStorage]:
        with docker_errors(_run_error), docker_client() as client:
            yield DockerStorage(client, self._reporter)

    def _run(self, image: Image, command: Sequence[str], options: RunOptions) -> Completed:
        with self.storage() as storage, _container(storage, image, command, options) as container:
            if options.capture:
                return _wait(container, options.timeout_s)
            return _stream(container, options.timeout_s)

    def run_recorded(
        self, image: Image, command: Sequence[str], options: RunOptions, archive: Path
    ) -> Completed:
        """Runs a command and saves the image of the container, with what the command changed on top.

        Args:
            image: the image.
            command: the program and its arguments; all its output goes to ``options.on_line``.
            options: variables, mounts, network.
            archive: a new file, which receives the image (``docker save``) if the command succeeds.

        Raises:
            RunnerError: The container could not start, or could not be saved.
        """
        check_mounts(options.mounts)
        options = replace(options, entrypoint=())
        with self.storage() as storage, _container(storage, image, command, options) as container:
            container.start()
            _pass_on(container.logs(stream=True, follow=True), options.on_line)
            code = int(container.wait()["StatusCode"])
            if code == 0:
                tag = new_tag()
                committed = container.commit(REPOSITORY, tag)
                try:
                    with archive.open("wb") as out:
                        for data in committed.save(named=f"{REPOSITORY}:{tag}"):
                            out.write(data)
                finally:
                    storage.remove_image(f"{REPOSITORY}:{tag}")
        return Completed(code, "", "")


class DockerStorage(Storage):
    """The storage of a Docker engine.

    With containerd's image store (Docker 29's default) the id of an image is not its config's digest, and
    the image is loaded again for each process.

    Args:
        client: A client of the docker SDK.
        reporter: Receives the progress.
    """

    program = "docker"

    def __init__(self, client: Any, reporter: Reporter = QUIET) -> None:
        self.client = client
        self._reporter = reporter

    def image_id(self, image: Image) -> str:
        return image.config_descriptor.digest

    def names(self, image_id: str) -> list[str] | None:
        import docker

        with contextlib.suppress(docker.errors.NotFound):
            return list(self.client.images.get(image_id).tags)
        return None

    def id_of(self, name: str) -> str:
        import docker

        with contextlib.suppress(docker.errors.NotFound):
            return str(self.client.images.get(name).id)
        return ""

    def load(self, image: Image, name: str) -> str:
        with working(self._reporter, "loading the image into docker"):
            return docker_load(image, name, self.client)

    def tag(self, image_id: str, name: str) -> bool:
        repository, _, tag = name.rpartition(":")
        return bool(self.client.images.get(image_id).tag(repository, tag))

    def remove_image(self, name: str) -> None:
        import docker

        with contextlib.suppress(docker.errors.APIError):
            self.client.images.remove(name)

    def remove_container(self, name: str, *, force: bool) -> None:
        import docker

        with contextlib.suppress(docker.errors.APIError):
            self.client.api.remove_container(name, force=force, v=True)

    def own_containers(self) -> list[str]:
        found = self.client.containers.list(all=True, filters={"name": REPOSITORY}, ignore_removed=True)
        return [container.name for container in found]

    def own_images(self) -> list[str]:
        return [name for image in self.client.images.list(REPOSITORY) for name in image.tags]


@contextlib.contextmanager
def _container(
    storage: DockerStorage, image: Image, command: Sequence[str], options: RunOptions
) -> Iterator[Any]:
    """Create a container that is not started yet, and remove it at the end of the block."""
    from docker.types import LogConfig
    from docker.types import Mount as DockerMount

    mounts = [
        DockerMount(m.target, str(m.source.absolute()), "bind", read_only=m.readonly) for m in options.mounts
    ]
    name = container_name()
    container = storage.client.containers.create(
        storage.provide(image),
        list(command) or None,
        entrypoint=None if options.entrypoint is None else list(options.entrypoint),
        environment=dict(options.env),
        mounts=mounts,
        name=name,
        working_dir=options.workdir,
        network_mode=options.network,
        shm_size=SHM_SIZE,
        # the engine's default may be a driver that logs cannot be read from
        log_config=LogConfig(type="json-file", config={"max-size": str(MAX_OUTPUT)}),
        **docker_gpu_options(options.gpu, storage.client),
    )
    try:
        yield container
    finally:
        storage.remove_container(name, force=True)


def docker_problem() -> str | None:
    """Returns None if a Docker engine answers this user, else the reason."""
    where = "the default address"
    try:
        where = redact(docker_address().get("base_url", os.environ.get("DOCKER_HOST") or where))
        with docker_client(timeout_s=5) as client:
            client.ping()
    except RunnerError as e:
        return e.message
    except Exception as e:  # the SDK passes on errors of requests, urllib3 and the socket
        if not os.environ.get("DOCKER_HOST") and not shutil.which("docker") and not _SOCKET.exists():
            return "not installed"
        why = ": permission denied" if "ermission denied" in str(e) else ""
        return f"no engine answers at {where}{why}"
    return None


def _run_error(message: str) -> RunnerError:
    hint = hint_for("docker", message) or "see the engine's log, or use another --runner"
    return RunnerError(f"docker could not run the image: {message}", hint)


def docker_gpu_options(gpu: GpuVendor, client: Any) -> dict[str, Any]:
    """Returns the SDK's arguments that make the GPUs available in a container; empty if there are none."""
    devices = gpu_devices(gpu)
    # an engine on another machine may have GPUs that this host does not have
    if gpu == "nvidia" and (devices or "nvidia" in (client.info().get("Runtimes") or {})):
        from docker.types import DeviceRequest

        return {"device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])]}

    if gpu == "amd" and devices:
        return {
            "devices": [f"{device}:{device}:rwm" for device in devices],
            "group_add": [str(group) for group in device_groups(devices)],
        }
    return {}


def _wait(container: Any, timeout_s: float | None) -> Completed:
    """Runs the container to its end, or to the time limit."""
    import requests

    started = time.monotonic()
    container.start()
    timed_out = False
    try:
        code = int(container.wait(timeout=timeout_s)["StatusCode"])
    except requests.exceptions.RequestException:
        if timeout_s is None or time.monotonic() - started < timeout_s:
            raise  # the connection broke
        container.kill()
        code, timed_out = TIMED_OUT, True
    out = container.logs(stdout=True, stderr=False).decode(errors="replace")
    err = container.logs(stdout=False, stderr=True).decode(errors="replace")
    return Completed(code, out, err, timed_out)


def _stream(container: Any, timeout_s: float | None) -> Completed:
    """Runs the container and copies its output to this process's own."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        with contextlib.suppress(Exception):
            container.kill()

    container.client.api.timeout = None  # the command may print nothing for a long time
    stream = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    container.start()
    timer = threading.Timer(timeout_s, kill) if timeout_s is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        for out, err in stream:
            _copy(out, sys.stdout.buffer)
            _copy(err, sys.stderr.buffer)
        code = int(container.wait()["StatusCode"])
    finally:
        if timer:
            timer.cancel()
    return Completed(TIMED_OUT if late.is_set() else code, "", "", late.is_set())


def _pass_on(chunks: Iterator[bytes], on_line: Callable[[str], None] | None) -> None:
    """Passes on the lines of an output as they come."""
    pending = b""
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if on_line is not None:
                on_line(line.decode(errors="replace"))
    if pending and on_line is not None:
        on_line(pending.decode(errors="replace"))


def _copy(data: bytes | None, target: Any) -> None:
    if data:
        target.write(data)
        target.flush()
