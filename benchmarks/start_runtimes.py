"""The container runtimes that the start of an image is measured with: docker, podman, apptainer.

Each runtime forgets all of its images, pulls one and runs Python in a new container. Commands run in the
cgroup of the meter; the docker engine has to be in that cgroup already.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.engines import DockerEngine, Podman
from benchmarks.measure import Cgroup, Meter
from tests.support import parts

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Runtime(Protocol):
    """Pulls an image and runs Python in it."""

    @property
    def name(self) -> str:
        """How tables name it."""

    def forget(self) -> None:
        """Removes every image and everything cached of images."""

    def pull(self, meter: Meter, reference: str) -> None:
        """Pulls an image from a registry on loopback."""

    def python(self, meter: Meter, reference: str, arguments: Sequence[str]) -> str:
        """Runs ``python ARGUMENTS`` in a new container of a pulled image; returns its standard output."""


@dataclass
class DockerRuntime:
    """``docker pull`` and ``docker run``. Every image of the engine is removed: do not share it."""

    engine: DockerEngine
    group: Cgroup
    name: str = "docker"

    def forget(self) -> None:
        self.engine.docker("image", "prune", "--all", "--force")

    def pull(self, meter: Meter, reference: str) -> None:
        command = self.engine.command("pull", "--quiet", reference)
        meter.run(command, self.engine.env, self.engine.folder)

    def python(self, meter: Meter, reference: str, arguments: Sequence[str]) -> str:
        command = self.engine.command(
            "run", "--rm", "--network=none", reference, "python", *arguments
        )
        return meter.run(command, self.engine.env, self.engine.folder)


@dataclass
class PodmanRuntime:
    """``podman pull`` and ``podman run``."""

    podman: Podman
    group: Cgroup
    name: str = "podman"

    def forget(self) -> None:
        self.podman.run("podman", "rmi", "--all", "--force")

    def pull(self, meter: Meter, reference: str) -> None:
        command = self.podman.suite.command(
            "podman", "pull", "--quiet", "--tls-verify=false", reference
        )
        meter.run(command, self.podman.env, self.podman.folder)

    def python(self, meter: Meter, reference: str, arguments: Sequence[str]) -> str:
        options = ["--rm", "--network=none", f"--cgroup-parent={self.group.name}"]
        command = self.podman.suite.command(
            "podman", "run", *options, reference, "python", *arguments
        )
        return meter.run(command, self.podman.env, self.podman.folder)


@dataclass
class ApptainerRuntime:
    """``apptainer pull`` of a SIF (``oras``) or of an OCI image (``docker``), and ``apptainer exec``."""

    apptainer: parts.Apptainer
    folder: Path
    """Where the SIFs are written; they are removed by :meth:`forget`."""
    scheme: str = "oras"
    """``oras`` or ``docker``."""

    @property
    def name(self) -> str:
        return f"apptainer, {self.scheme}"

    def forget(self) -> None:
        shutil.rmtree(self.apptainer.env["APPTAINER_CACHEDIR"], ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def file(self, reference: str) -> Path:
        """The SIF that :meth:`pull` writes."""
        return self.folder / f"{hashlib.sha256(reference.encode()).hexdigest()[:16]}.sif"

    def pull(self, meter: Meter, reference: str) -> None:
        source = f"{self.scheme}://{reference}"
        command: list[str | Path] = [
            self.apptainer.path,
            "--quiet",
            "pull",
            "--no-https",
            self.file(reference),
            source,
        ]
        meter.run(command, self.apptainer.env, self.folder)

    def python(self, meter: Meter, reference: str, arguments: Sequence[str]) -> str:
        options: list[str | Path] = ["exec", "--containall", "--cleanenv", self.file(reference)]
        command: list[str | Path] = [self.apptainer.path, *options, "python", *arguments]
        return meter.run(command, self.apptainer.env, self.folder)


def drop_page_cache() -> bool:
    """Writes everything to the disk and empties the page cache; returns False without permission to."""
    os.sync()
    try:
        _DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True
