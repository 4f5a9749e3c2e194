"""Images of targets in the storage of docker and podman: ``builder/TARGET:latest``.

Unlike the images of the runners they stay there, so that the next run starts at once.
"""

from __future__ import annotations

import contextlib
from typing import Any

from builder.errors import RunnerError
from builder.image.archive import docker_load
from builder.model import Image
from builder.oci.reference import local_name
from builder.progress import Reporter, working
from builder.run.docker import docker_client, docker_errors
from builder.run.podman import names_of, pull_layout, remove
from builder.run.process import execute
from builder.settings import Settings
from builder.store.blobs import Store


def load_into_podman(
    program: str, image: Image, target: str, settings: Settings, store: Store, reporter: Reporter
) -> str:
    """Returns the id of an image in the storage of podman or podman-hpc, and loads it if needed.

    Raises:
        ImageError: a layer is not on this machine.
        RunnerError: the program does not work.
    """
    name = f"localhost/{local_name(target)}"
    image_id = image.config_descriptor.digest.partition(":")[2]
    names = names_of(program, image_id)
    if names is not None and name in names:
        return image_id
    previous = execute([program, "image", "inspect", "--format", "{{.Id}}", name], timeout_s=60)
    if names is None:
        image_id = pull_layout(program, image, settings, store, reporter)
    execute([program, "tag", image_id, name], timeout_s=60)
    if names is None:  # podman 4 names the image by the layout's path, podman 5 by the tag in the layout
        others = [other for other in names_of(program, image_id) or () if other != name]
        if others:
            execute([program, "untag", image_id, *others], timeout_s=60)
    old = previous.stdout.strip() if previous.returncode == 0 else ""
    if old and names_of(program, old) == []:
        remove([program, "rmi", old], reporter)  # fails if a container uses it
    return image_id


def load_into_docker(image: Image, target: str, reporter: Reporter) -> str:
    """Returns the id of an image in a Docker engine, and loads it if needed.

    The id is the config's digest. With containerd's image store (Docker 29's default) it is another, and the
    image is loaded for each run.

    Raises:
        ImageError: a layer is not on this machine, or the engine refuses the image.
        RunnerError: no engine answers.
    """
    import docker

    name = local_name(target)
    repository, _, tag = name.rpartition(":")
    with docker_errors(_error), docker_client() as client:
        old = _id_of(client, name)
        known = _id_of(client, image.config_descriptor.digest)
        if known is None:
            with working(reporter, f"loading {target} into docker"):
                known = docker_load(image, name, client)
        elif known != old:
            client.images.get(known).tag(repository, tag)
        if old not in (None, known):
            with contextlib.suppress(docker.errors.APIError):  # a container uses it
                if not client.images.get(old).tags:
                    client.images.remove(old)
        return known


def _id_of(client: Any, name: str) -> str | None:
    import docker

    with contextlib.suppress(docker.errors.NotFound):
        return str(client.images.get(name).id)
    return None


def _error(message: str) -> RunnerError:
    return RunnerError(
        f"docker could not load the image: {message}",
        "is the Docker daemon running, and may this user use it?",
    )
