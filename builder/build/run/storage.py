"""What docker and podman have in common: images and containers of builder in an engine's storage.

Images of the runners are removed when the process ends. Those of ``build --load`` and ``builder
run`` stay there as ``builder/TARGET:latest``, so that the next run starts at once.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from builder.core.model import Image, SifImage
from builder.core.store.temporary import temporary_name
from builder.formats.oci.reference import local_name

from .base import DEFAULT_OPTIONS, ImageConfig, Runner, RunOptions, require_oci
from .leftovers import REPOSITORY, is_left_behind, loaded, remember
from .process import Completed

log = logging.getLogger(__name__)


def container_name() -> str:
    """Return a name for a container that names this process."""
    return f"{REPOSITORY}-{temporary_name()}"


class Storage(ABC):
    """The storage of a container engine."""

    program: str
    """``docker``, ``podman`` or ``podman-hpc``."""
    host: ClassVar[str] = ""
    """What the names of local images begin with."""

    def image_id(self, image: Image) -> str:
        """Return the id that an image has in the storage: the digest of its config, by default."""
        return image.config_descriptor.digest

    @abstractmethod
    def names(self, image_id: str) -> Sequence[str] | None:
        """Return the names of an image; None if it is not in the storage."""

    @abstractmethod
    def id_of(self, name: str) -> str:
        """Return the id of the image of a name; empty if there is none."""

    @abstractmethod
    def load(self, image: Image, name: str) -> str:
        """Load an image under a name, and return its id.

        Raises:
            ImageError: A layer is not on this machine, or the engine refuses the image.
            RunnerError: The engine does not work.
        """

    @abstractmethod
    def tag(self, image_id: str, name: str) -> bool:
        """Give an image a name; return False if it is not in the storage."""

    @abstractmethod
    def remove_image(self, name: str) -> None:
        """Remove a name, and the image with its last name unless a container uses it."""

    @abstractmethod
    def remove_container(self, name: str) -> None:
        """Remove a container, also one that runs."""

    @abstractmethod
    def own_containers(self) -> Iterable[str]:
        """Return the names of the containers, at least of those that builder made."""

    @abstractmethod
    def own_images(self) -> Iterable[str]:
        """Return the names of the images, at least of those that builder made."""

    def provide(self, image: Image) -> str:
        """Return the id of an image for a run. It is loaded if needed, until this process ends.

        Raises:
            ImageError, RunnerError: See :meth:`load`.
        """
        known = loaded(self.program, image.digest)
        if known is not None:
            return known
        self.remove_leftovers()
        own = f"{self.host}{REPOSITORY}:"
        image_id = self.image_id(image)
        names = self.names(image_id)
        if names is not None and not any(name.startswith(own) for name in names):
            log.info("%s has the image already", self.program)
            return image_id  # the user's own
        # Another process may have loaded the image; it will remove only its own name.
        name = f"{own}{temporary_name()}"
        if names is None or not self.tag(image_id, name):
            log.info("loading the image into %s, until builder ends", self.program)
            image_id = self.load(image, name)
        remember(self.program, image.digest, image_id, lambda: self.remove_image(name))
        return image_id

    def keep(self, image: Image, target: str) -> str:
        """Return the id of a target's image, which is loaded if needed and stays in the storage.

        Raises:
            ImageError, RunnerError: See :meth:`load`.
        """
        name = f"{self.host}{local_name(target)}"
        image_id = self.image_id(image)
        names = self.names(image_id)
        if name in (names or ()):
            return image_id
        old = self.id_of(name)
        if names is None or not self.tag(image_id, name):
            image_id = self.load(image, name)
        if old not in ("", image_id) and self.names(old) == []:
            self.remove_image(old)
        return image_id

    def remove_leftovers(self) -> None:
        """Remove containers and images of killed processes, see
        :mod:`builder.build.run.leftovers`."""
        for name in self.own_containers():
            if name.startswith(f"{REPOSITORY}-") and is_left_behind(name):
                self.remove_container(name)
        for name in self.own_images():
            if name.startswith(f"{self.host}{REPOSITORY}:") and is_left_behind(name):
                self.remove_image(name)


class EngineRunner(Runner):
    """Runs OCI images in a container engine."""

    forbidden: ClassVar[str] = ""
    """Characters that the engine cannot pass in the paths of mounts."""

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        image = require_oci(image, self.name)
        config = ImageConfig.of(image)
        config.arguments(command, options.entrypoint)  # fails if there is nothing to run
        config.require_registered(self.name)
        for mount in options.mounts:
            mount.check(self.forbidden)
        return self._run(image, command, options)

    @abstractmethod
    def _run(self, image: Image, command: Sequence[str], options: RunOptions) -> Completed:
        """Run a command with checked options."""

    @abstractmethod
    def storage(self) -> contextlib.AbstractContextManager[Storage]:
        """Open the engine's storage."""

    def keep(self, image: Image, target: str) -> str:
        """Load a target's image for more than this process, and return its id."""
        with self.storage() as storage:
            return storage.keep(image, target)
