"""The tools that builder is compared with: ``docker build`` and ``buildah bud``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cgroup, Figures, Meter
from benchmarks.project import RegistryState
from tests.support import parts

DOCKERFILE = """\
FROM {base}
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore {options} \\
    --no-index --no-deps --find-links {links} -r /tmp/requirements.txt
"""
#: Prints the distributions of an image.
LIST_PACKAGES = """
import importlib.metadata as m
print(*sorted({d.name.lower().replace("_", "-") + "==" + d.version for d in m.distributions()}))
"""


@dataclass(frozen=True)
class Run:
    """A build and a push."""

    build: Figures
    push: Figures
    bytes_sent: int
    """Bytes that the registry received."""

    @property
    def both(self) -> Figures:
        b, p = self.build, self.push
        return Figures(b.seconds + p.seconds, b.cpu + p.cpu, max(b.rss, p.rss), max(b.pss, p.pss))


class Docker:
    """``docker build`` and ``docker push``, including the work of the daemon."""

    def __init__(
        self, engine: parts.DockerEngine, group: Cgroup, state: RegistryState, context: Path, base: str
    ) -> None:
        self.engine, self.group, self.state, self.context = engine, group, state, context
        self.image = f"{state.registry.host}/bench/docker:1"
        group.add(engine.pid)
        engine.docker("pull", base)
        self._bases = {image.id for image in engine.client.images.list(all=True)}

    def forget(self) -> None:
        """Removes every image except the base. Images that others are based on need more than one pass."""
        self.engine.client.containers.prune()
        for _ in range(5):
            images = self.engine.client.images.list(all=True)
            rest = [image for image in images if image.id not in self._bases]
            if not rest:
                return
            for image in rest:
                with contextlib.suppress(Exception):
                    self.engine.client.images.remove(image.id, force=True)

    def run(self, file: str) -> Run:
        """Builds and pushes the image of this Dockerfile."""
        before = self.state.size()
        build, push = Meter(self.group), Meter(self.group)
        options = ["--quiet", "--network=host", f"--cgroup-parent={self.group.name}"]
        names: list[str | Path] = ["--tag", self.image, "--file", self.context / file]
        with build.measure():
            build.run(["docker", "build", *options, *names, self.context], self.engine.env, self.context)
        with push.measure():
            push.run(["docker", "push", "--quiet", self.image], self.engine.env, self.context)
        assert build.figures and push.figures
        return Run(build.figures, push.figures, self.state.size() - before)

    def packages(self, image: str = "") -> set[str]:
        """The distributions in an image, by the Python in it."""
        command = ["python", "-c", LIST_PACKAGES]
        output = self.engine.client.containers.run(
            image or self.image, command, network_mode="none", remove=True
        )
        return set(output.decode().split())


class Buildah:
    """``buildah bud`` and ``buildah push``."""

    def __init__(
        self, podman: parts.Podman, group: Cgroup, state: RegistryState, context: Path, base: str
    ) -> None:
        self.podman, self.group, self.state, self.context = podman, group, state, context
        self.image = f"{state.registry.host}/bench/buildah:1"
        podman.run("pull", "--tls-verify=false", base)

    def forget(self) -> None:
        """Removes every image except the base."""
        self.podman.run("rmi", "--force", self.image, check=False)
        self.podman.run("image", "prune", "--force")

    def run(self, file: str) -> Run:
        """Builds and pushes the image of this Dockerfile."""
        before = self.state.size()
        build, push = Meter(self.group), Meter(self.group)
        options = ["--quiet", "--layers", "--network=host", "--pull=never"]
        options.append(f"--cgroup-parent={self.group.name}")
        names: list[str | Path] = ["--tag", self.image, "--file", self.context / file]
        upload = ["buildah", "push", "--quiet", "--tls-verify=false", self.image]
        with build.measure():
            build.run(["buildah", "bud", *options, *names, self.context], self.podman.env, self.context)
        with push.measure():
            push.run(upload, self.podman.env, self.context)
        assert build.figures and push.figures
        return Run(build.figures, push.figures, self.state.size() - before)
