"""Docker, through its SDK: the engine of DOCKER_HOST, DOCKER_CONTEXT or docker's configuration.

builder uses the SDK and not the docker program: connecting (contexts, TLS, ssh) is shared with the
docker engine, ``build --load`` and ``pull``, and works where only a socket is available. docker
does not accept the podman runner's command line: entry points of several words, multi-line
variables and the removal of containers after a timeout differ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from builder.build.image.archive import docker_load, has_containerd_store
from builder.core.errors import BuilderError, RunnerError
from builder.core.model import Image
from builder.core.progress import QUIET, Reporter, working
from builder.core.redact import redact
from builder.core.settings import home_folder
from builder.core.store.temporary import temporary_name
from builder.lock.config.site import GpuVendor

from .base import CHANGED_IMAGE, SHM_SIZE, RunOptions
from .failures import hint_for
from .gpu import device_groups, gpu_devices
from .leftovers import REPOSITORY
from .process import TIMED_OUT, Completed, ProcessOutput
from .storage import EngineRunner, Storage, container_name

_SOCKET = Path("/var/run/docker.sock")


# connecting to the engine -------------------------------------------------------------------------


def _refuse_pipe() -> None:
    """Raise RunnerError if docker's configuration is a pipe, for which the SDK would wait."""
    file = Path(os.environ.get("DOCKER_CONFIG") or home_folder() / ".docker", "config.json")
    if file.is_fifo():
        raise RunnerError(f"{file} is a pipe, not a file", "remove it, or set DOCKER_CONFIG")


def docker_address() -> dict[str, Any]:
    """Return the SDK's arguments for the engine that the docker command line would use.

    Empty for DOCKER_HOST and the default address, which the SDK finds itself.

    Raises:
        RunnerError: DOCKER_CONTEXT names a context that does not exist, or the SDK would wait for
            docker's configuration, which is a pipe.
    """
    from docker.context import ContextAPI
    from docker.errors import DockerException

    _refuse_pipe()
    if os.environ.get("DOCKER_HOST"):
        return {}
    name = os.environ.get("DOCKER_CONTEXT")
    hint = "list the contexts: docker context ls"
    try:
        context = ContextAPI.get_context(name)
    except DockerException as e:
        message = f"docker's context {name or ''} cannot be read: {e}"
        raise RunnerError(message, hint) from None
    if context is None:
        raise RunnerError(f"docker has no context named {name or 'in its configuration'}", hint)
    if context.Name == "default" or not context.Host:
        return {}
    tls = {"tls": context.TLSConfig} if context.TLSConfig else {}
    return {"base_url": context.Host, **tls}


@contextlib.contextmanager
def docker_client(timeout_s: int = 600) -> Iterator[Any]:
    """Open a ``docker.DockerClient`` of the engine, and close it at the end.

    Args:
        timeout_s: of each request.

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
    """Raise ``error(message)`` instead of errors of the SDK and of its HTTP library."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as e:
        raise error(str(getattr(e, "explanation", None) or e)) from None


# running ------------------------------------------------------------------------------------------


class DockerRunner(EngineRunner):
    """Runs images with a Docker engine, which loads missing images until the process ends."""

    name = "docker"

    def available(self) -> str | None:
        return docker_problem()

    @contextlib.contextmanager
    def storage(self) -> Iterator[DockerStorage]:
        with docker_errors(_run_error), docker_client() as client:
            yield DockerStorage(client, self._work.reporter)

    def _run(self, image: Image, command: Sequence[str], options: RunOptions) -> Completed:
        with self.storage() as storage, _container(storage, image, command, options) as container:
            done = _follow(container, options)
            if options.changes is not None and done.returncode == 0:
                _save(storage, container, options.changes / CHANGED_IMAGE)
            return done


class DockerStorage(Storage):
    """The storage of a Docker engine: graph drivers, or containerd's image store.

    Args:
        client: A client of the docker SDK.
        reporter: Receives the progress.
    """

    program = "docker"

    def __init__(self, client: Any, reporter: Reporter = QUIET) -> None:
        from docker import errors

        self._errors = errors
        self.client = client
        self._reporter = reporter

    def image_id(self, image: Image) -> str:
        return image.digest if has_containerd_store(self.client) else super().image_id(image)

    def names(self, image_id: str) -> list[str] | None:
        with contextlib.suppress(self._errors.NotFound):
            return list(self.client.images.get(image_id).tags)
        return None

    def id_of(self, name: str) -> str:
        with contextlib.suppress(self._errors.NotFound):
            return str(self.client.images.get(name).id)
        return ""

    def load(self, image: Image, name: str) -> str:
        with working(self._reporter, "loading the image into docker"):
            return docker_load(image, name, self.client)

    def tag(self, image_id: str, name: str) -> bool:
        repository, _, tag = name.rpartition(":")
        return bool(self.client.images.get(image_id).tag(repository, tag))

    def remove_image(self, name: str) -> None:
        with contextlib.suppress(self._errors.APIError):
            self.client.images.remove(name)

    def remove_container(self, name: str) -> None:
        with contextlib.suppress(self._errors.APIError):
            self.client.api.remove_container(name, force=True, v=True)

    def own_containers(self) -> list[str]:
        ours = {"name": REPOSITORY}
        found = self.client.containers.list(all=True, filters=ours, ignore_removed=True)
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
        DockerMount(m.target, str(m.source.absolute()), "bind", read_only=m.readonly)
        for m in options.mounts
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
        log_config=LogConfig(type="none"),  # an endless output would fill the disk
        **docker_gpu_options(options.gpu, storage.client),
    )
    try:
        yield container
    finally:
        storage.remove_container(name)


def docker_problem() -> str | None:
    """Return None if a Docker engine answers this user, else the reason."""
    where = "the default address"
    try:
        where = redact(docker_address().get("base_url", os.environ.get("DOCKER_HOST") or where))
        with docker_client(timeout_s=5) as client:
            client.ping()
    except RunnerError as e:
        return e.message
    except Exception as e:  # the SDK passes on errors of requests, urllib3 and the socket
        named = os.environ.get("DOCKER_HOST")
        if not (named or shutil.which("docker") or _SOCKET.exists()):
            return "not installed"
        why = ": permission denied" if "ermission denied" in str(e) else ""
        return f"no engine answers at {where}{why}"
    return None


def _run_error(message: str) -> RunnerError:
    hint = hint_for("docker", message) or "see the engine's log, or see builder doctor"
    return RunnerError(f"docker could not run the image: {message}", hint)


def docker_gpu_options(gpu: GpuVendor, client: Any) -> dict[str, Any]:
    """Return the SDK's arguments that make the GPUs available in a container."""
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


def _follow(container: Any, options: RunOptions) -> Completed:
    """Run the container to its end, or to the time limit, and read or copy its output."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        with contextlib.suppress(Exception):
            container.kill()

    output, errors = ProcessOutput(), ProcessOutput(options.on_line)
    container.client.api.timeout = None  # the command may print nothing for a long time
    stream = container.attach(stdout=True, stderr=True, stream=True, demux=True)
    container.start()
    timer = threading.Timer(options.timeout_s or threading.TIMEOUT_MAX, kill)
    timer.daemon = True
    timer.start()
    try:
        for out, err in stream:
            if not options.capture:
                _copy(out, sys.stdout.buffer)
                _copy(err, sys.stderr.buffer)
                continue
            for part, data in ((output, out), (errors, err)):
                part.add(data or b"")
                part.check("the container")
        code = int(container.wait()["StatusCode"])
    finally:
        timer.cancel()
    return Completed(TIMED_OUT if late.is_set() else code, output.text, errors.text, late.is_set())


def _save(storage: DockerStorage, container: Any, archive: Path) -> None:
    """Write the image of a container, with what the command changed on top, into a file."""
    tag = temporary_name()
    committed = container.commit(REPOSITORY, tag)
    try:
        with archive.open("wb") as out:
            out.writelines(committed.save(named=f"{REPOSITORY}:{tag}"))
    finally:
        storage.remove_image(f"{REPOSITORY}:{tag}")


def _copy(data: bytes | None, target: Any) -> None:
    if data:
        target.write(data)
        target.flush()
