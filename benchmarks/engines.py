"""The tools that builder is compared with: docker and buildah, which run pip, uv or micromamba."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Cgroup, Meter
from benchmarks.project import Project, RegistryState, measured
from benchmarks.workloads import BUILDAH, MICROMAMBA, NO_COMPILE, PIP, UV, UV_NO_COMPILE, Workload
from tests.support import parts

_DOCKERFILE = """\
FROM {base}
COPY requirements.txt /tmp/requirements.txt
RUN {install}
"""
_PIP = (
    "pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore {flags}"
    " --no-index --no-deps --find-links {links} -r /tmp/requirements.txt"
)
_UV = (
    "uv pip install --system --break-system-packages --no-cache --link-mode=copy {flags}"
    " --no-index --no-deps --find-links {links} -r /tmp/requirements.txt"
)
#: micromamba is a static program: it is copied in for the RUN line and removed by it.
_MICROMAMBA = """\
FROM {base}
COPY micromamba /usr/local/bin/micromamba
RUN micromamba create --yes --quiet --prefix /opt/env --override-channels --channel {links} {packages} \\
    && micromamba clean --all --yes --quiet
"""
_INSTALL = {
    PIP: (_PIP, ""),
    NO_COMPILE: (_PIP, "--no-compile"),
    BUILDAH: (_PIP, ""),
    UV: (_UV, "--compile-bytecode"),
    UV_NO_COMPILE: (_UV, ""),
}
#: Prints the distributions of an image.
LIST_PACKAGES = """
import importlib.metadata as m
print(*sorted({d.name.lower().replace("_", "-") + "==" + d.version for d in m.distributions()}))
"""


def missing(way: str) -> str:
    """Why a rival cannot be measured on this machine; empty if it can."""
    program = {MICROMAMBA: "micromamba", BUILDAH: "buildah"}.get(way, "docker")
    return "" if shutil.which(program) else f"{program} is not installed"


def write_context(folder: Path, way: str, workload: Workload, links: str, base: str) -> None:
    """Writes the Dockerfile of a rival and what it copies.

    Args:
        folder: a new folder.
        way: the rival.
        workload: what is installed.
        links: the address of the wheels, or of the conda channel.
        base: the reference of the base image.
    """
    folder.mkdir(parents=True)
    if way == MICROMAMBA:
        program = shutil.which("micromamba")
        assert program is not None, missing(way)
        shutil.copy(program, folder / "micromamba")
        names = " ".join(["python=3.11", *workload.conda])
        text = _MICROMAMBA.format(base=base, links=links, packages=names)
    else:
        (folder / "requirements.txt").write_text("\n".join(workload.wanted))
        install, flags = _INSTALL[way]
        text = _DOCKERFILE.format(base=base, install=install.format(flags=flags, links=links))
    (folder / "Dockerfile").write_text(text)


@dataclass(frozen=True)
class _Commands:
    """Command lines of a tool, and where they run."""

    build: Callable[[Path], list[str | Path]]
    push: list[str | Path]
    env: Mapping[str, str]


def _run(commands: _Commands, context: Path, group: Cgroup, state: RegistryState) -> dict[str, Any]:
    before = state.size()
    build, push = Meter(group), Meter(group)
    with build.measure():
        build.run(commands.build(context), commands.env, context)
    with push.measure():
        push.run(commands.push, commands.env, context)
    assert build.figures and push.figures
    b, p = build.figures, push.figures
    out = measured(b, state.size() - before)
    memory = {"rss": max(b.rss, p.rss), "pss": max(b.pss, p.pss)}
    whole = {"seconds": b.seconds + p.seconds, "cpu": b.cpu + p.cpu, **memory}
    return {**out, **whole, "build": b.seconds, "push": p.seconds}


class Docker:
    """``docker build`` and ``docker push``, including the work of the daemon."""

    def __init__(self, engine: parts.DockerEngine, group: Cgroup, state: RegistryState, base: str) -> None:
        self.engine, self.group, self.state = engine, group, state
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

    def run(self, context: Path, image: str = "") -> dict[str, Any]:
        """Builds and pushes the image of a folder; returns the figures.

        Args:
            context: the folder.
            image: another reference than the usual one.
        """
        tag = image or self.image
        options = ["--quiet", "--network=host", f"--cgroup-parent={self.group.name}", "--tag", tag]
        build = lambda folder: ["docker", "build", *options, folder]  # noqa: E731
        push: list[str | Path] = ["docker", "push", "--quiet", tag]
        return _run(_Commands(build, push, self.engine.env), context, self.group, self.state)

    def packages(self, image: str = "") -> set[str]:
        """The distributions in an image, by the Python in it."""
        command = ["python", "-c", LIST_PACKAGES]
        output = self.engine.client.containers.run(
            image or self.image, command, network_mode="none", remove=True
        )
        return set(output.decode().split())


class Buildah:
    """``buildah bud`` and ``buildah push``."""

    def __init__(self, podman: parts.Podman, group: Cgroup, state: RegistryState, base: str) -> None:
        self.podman, self.group, self.state = podman, group, state
        self.image = f"{state.registry.host}/bench/buildah:1"
        podman.run("pull", "--tls-verify=false", base)

    def forget(self) -> None:
        """Removes every image except the base."""
        self.podman.run("rmi", "--force", self.image, check=False)
        self.podman.run("image", "prune", "--force")

    def run(self, context: Path) -> dict[str, Any]:
        """Builds and pushes the image of a folder; returns the figures."""
        options = ["--quiet", "--layers", "--network=host", "--pull=never", "--tag", self.image]
        options.append(f"--cgroup-parent={self.group.name}")
        build = lambda folder: ["buildah", "bud", *options, folder]  # noqa: E731
        push: list[str | Path] = ["buildah", "push", "--quiet", "--tls-verify=false", self.image]
        return _run(_Commands(build, push, self.podman.env), context, self.group, self.state)


@contextlib.contextmanager
def docker_rival(group: Cgroup, state: RegistryState, base: str) -> Iterator[Docker]:
    """A Docker engine of its own, with the base image pulled."""
    with parts.docker_engine(["--exec-opt", "native.cgroupdriver=cgroupfs"]) as engine:
        yield Docker(engine, group, state, base)


@contextlib.contextmanager
def buildah_rival(group: Cgroup, state: RegistryState, base: str) -> Iterator[Buildah]:
    """buildah with storage of its own, with the base image pulled."""
    with parts.podman() as podman:
        yield Buildah(podman, group, state, base)


def same_packages(docker: Docker, project: Project, workload: Workload, reference: str) -> dict[str, Any]:
    """The distributions in docker's last image and in builder's, by the Python in each.

    Args:
        docker: the engine.
        project: what the base of docker's image contains besides the workload.
        workload: what is installed.
        reference: builder's image in the registry.
    """
    theirs = docker.packages()
    docker.engine.docker("pull", reference)
    ours = docker.packages(reference)
    base = set(project.base_packages)
    wanted = {line.partition("==")[0] for line in workload.wanted}

    def different(some: set[str], others: set[str]) -> list[str]:
        names = (line.partition("==")[0] for line in sorted(some - others))
        return [name for name in names if name in wanted or name not in base]

    return {
        "count": len(ours & theirs),
        "only builder": different(ours, theirs),
        "only docker": different(theirs, ours),
    }
