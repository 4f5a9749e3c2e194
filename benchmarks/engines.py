"""The tools that builder is compared with: docker and buildah, which run pip, uv or micromamba."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Cgroup, CommandFailed, Meter
from benchmarks.project import Project, Traffic, measured
from benchmarks.suite import Suite
from benchmarks.workloads import BUILDAH, MICROMAMBA, PIP, UV, UV_NO_COMPILE, Workload
from tests.support import parts

#: With the mounts that the documentation of uv ("Using uv in Docker") and of Docker ("Optimize cache usage in
#: builds") advises.
_DOCKERFILE = """\
FROM {base}
RUN --mount=type=cache,target=/root/.cache/{tool} \\
    --mount=type=bind,source=requirements.txt,target=/tmp/requirements.txt \\
    {install} --no-index --no-deps --find-links {links} -r /tmp/requirements.txt
"""
#: Without --trusted-host pip does not cache what it receives over HTTP without TLS.
_PIP = "pip install --disable-pip-version-check --root-user-action=ignore --trusted-host 127.0.0.1"
_UV = "uv pip install --system --break-system-packages --link-mode=copy"
_INSTALL = {
    PIP: ("pip", _PIP),
    UV: ("uv", f"{_UV} --compile-bytecode"),
    UV_NO_COMPILE: ("uv", _UV),
    BUILDAH: ("uv", _UV),
}
#: micromamba is a static program: it is copied in for the RUN line and removed by it.
_MICROMAMBA = """\
FROM {base}
COPY micromamba /usr/local/bin/micromamba
RUN micromamba create --yes --quiet --prefix /opt/env --override-channels --channel {links} {packages} \\
    && micromamba clean --all --yes --quiet
"""
#: A build that uses this much CPU time in its container.
_BURN_S = 1.0
_BURN = """\
FROM {base}
RUN python -c "import time; exec('while time.process_time() < {seconds}: pass')"
"""
#: Prints the distributions of an image.
LIST_PACKAGES = """
import importlib.metadata as m
print(*sorted({d.name.lower().replace("_", "-") + "==" + d.version for d in m.distributions()}))
"""


def missing(way: str) -> str:
    """Return why a rival cannot be measured on this machine; empty if it can."""
    absent = way == MICROMAMBA and shutil.which("micromamba") is None
    return "micromamba is not installed" if absent else ""


def write_context(folder: Path, way: str, workload: Workload, links: str, base: str) -> None:
    """Write the Dockerfile of a rival and what it reads.

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
        tool, install = _INSTALL[way]
        text = _DOCKERFILE.format(base=base, tool=tool, install=install, links=links)
    (folder / "Dockerfile").write_text(text)


@dataclass(frozen=True)
class Commands:
    """The command lines of a build and of a push, and their environment."""

    build: list[str | Path]
    push: list[str | Path]
    env: Mapping[str, str]


def _measure(commands: Commands, group: Cgroup, traffic: Traffic, cwd: Path) -> dict[str, Any]:
    """Run and measure a build and a push."""
    build, push = Meter(group), Meter(group)
    before = traffic.count()
    with build.measure():
        build.run(commands.build, commands.env, cwd)
    with push.measure():
        push.run(commands.push, commands.env, cwd)
    assert build.figures and push.figures
    b, p = build.figures, push.figures
    memory = {"rss": max(b.rss, p.rss), "pss": max(b.pss, p.pss)}
    whole = {"seconds": b.seconds + p.seconds, "cpu": b.cpu + p.cpu, **memory}
    return {**measured(b, before, traffic.count()), **whole, "build": b.seconds, "push": p.seconds}


@dataclass(frozen=True)
class DockerEngine:
    """A Docker engine of the tree. It has no bridge: containers share the host's network or have none."""

    suite: Suite
    pid: int
    folder: Path
    env: Mapping[str, str]

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the command line of docker's client."""
        return self.suite.command("docker", *words)

    def docker(self, *words: str | Path, check: bool = True) -> str:
        """Run docker's client, which is not measured; return its standard output.

        Raises:
            CommandFailed: it fails, unless ``check`` is false.
        """
        return self.suite.run(["docker", *words], self.env, check=check)


@contextlib.contextmanager
def docker_engine(suite: Suite, group: Cgroup) -> Iterator[DockerEngine]:
    """Start a Docker engine whose processes, and those of its builds and containers, are in a cgroup."""
    with parts.part_folder("dk") as folder:
        log, host = folder / "log", f"unix://{folder}/dk.sock"
        env = parts.clean_environment(
            HOME=folder, DOCKER_HOST=host, DOCKER_CONFIG=folder / "config"
        )
        (folder / "config").mkdir()
        words: list[str | Path] = ["--host", host, "--data-root", folder / "data"]
        words += ["--exec-root", folder / "exec", "--pidfile", folder / "dk.pid"]
        words += ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        words += ["--exec-opt", "native.cgroupdriver=cgroupfs", f"--cgroup-parent={group.name}"]
        process = parts.start(suite.command("dockerd", *words), log, env)
        engine = DockerEngine(suite, process.pid, folder, env)

        def answers() -> bool:
            with contextlib.suppress(CommandFailed):
                return bool(engine.docker("info", "--format", "{{.ID}}"))
            return False

        try:
            parts.wait_for(answers, process, log, "dockerd")
            group.add(process.pid)
            yield engine
        finally:
            parts.stop(process)


class Docker:
    """``docker build`` with BuildKit, and ``docker push``, including the work of the daemon."""

    def __init__(self, engine: DockerEngine, group: Cgroup, traffic: Traffic, base: str) -> None:
        self.engine, self.group, self.traffic = engine, group, traffic
        self.image, self.bumped_image = (
            f"{traffic.state.registry.host}/bench/docker:{n}" for n in (1, 2)
        )
        engine.docker("pull", "--quiet", base)
        self._bases = self._images()

    def _images(self) -> set[str]:
        return set(self.engine.docker("images", "--all", "--quiet", "--no-trunc").split())

    def forget(self) -> None:
        """Remove every image except the base, all layers of builds, and all cache mounts."""
        if rest := self._images() - self._bases:
            self.engine.docker("rmi", "--force", *rest)
        self.engine.docker("builder", "prune", "--all", "--force")

    def run(self, context: Path, image: str = "") -> dict[str, Any]:
        """Build and push the image of a folder; return the figures.

        Args:
            context: the folder.
            image: another reference than the usual one.
        """
        tag = image or self.image
        build = self.engine.command("build", "--quiet", "--network=host", "--tag", tag, context)
        push = self.engine.command("push", "--quiet", tag)
        return _measure(Commands(build, push, self.engine.env), self.group, self.traffic, context)

    def packages(self, image: str = "") -> set[str]:
        """Return the distributions in an image, as the Python in it lists them."""
        python = ["--network=none", image or self.image, "python", "-c", LIST_PACKAGES]
        return set(self.engine.docker("run", "--rm", *python).split())


@dataclass(frozen=True)
class Podman:
    """podman and buildah of the tree, with storage of their own."""

    suite: Suite
    folder: Path
    env: Mapping[str, str]

    def run(self, *words: str | Path, check: bool = True) -> str:
        """Run a program, which is not measured; return its standard output.

        Raises:
            CommandFailed: it fails, unless ``check`` is false.
        """
        return self.suite.run(words, self.env, check=check)


@contextlib.contextmanager
def podman_storage(suite: Suite) -> Iterator[Podman]:
    """Make storage for podman and buildah, and a folder for cache mounts."""
    with parts.part_folder("pm") as folder:
        (folder / "tmp").mkdir()
        env = {**parts.podman_environment(folder, folder), "TMPDIR": str(folder / "tmp")}
        podman = Podman(suite, folder, env)
        try:
            yield podman
        finally:
            podman.run("podman", "rm", "--all", "--force", "--time", "1", check=False)


class Buildah:
    """``buildah bud`` and ``buildah push``."""

    def __init__(self, podman: Podman, group: Cgroup, traffic: Traffic, base: str) -> None:
        self.podman, self.group, self.traffic = podman, group, traffic
        self.image, self.bumped_image = (
            f"{traffic.state.registry.host}/bench/buildah:{n}" for n in (1, 2)
        )
        podman.run("podman", "pull", "--quiet", "--tls-verify=false", base)
        self._bases = self._images()

    def _images(self) -> set[str]:
        return set(self.podman.run("podman", "images", "--all", "--quiet", "--no-trunc").split())

    def forget(self) -> None:
        """Remove every image except the base, and all cache mounts, which buildah has in TMPDIR."""
        if rest := self._images() - self._bases:
            self.podman.run("podman", "rmi", "--force", *rest)
        parts.remove_tree(self.podman.folder / "tmp")
        (self.podman.folder / "tmp").mkdir()

    def run(self, context: Path, image: str = "") -> dict[str, Any]:
        """Build and push the image of a folder; return the figures.

        Args:
            context: the folder.
            image: another reference than the usual one.
        """
        tag, command = image or self.image, self.podman.suite.command
        options = ["--quiet", "--layers", "--network=host", "--pull=never", "--tag", tag]
        options.append(f"--cgroup-parent={self.group.name}/{tag.rpartition(':')[2]}")
        build = command("buildah", "bud", *options, context)
        push = command("buildah", "push", "--quiet", "--tls-verify=false", tag)
        return _measure(Commands(build, push, self.podman.env), self.group, self.traffic, context)


def check_counted(tool: Docker | Buildah, folder: Path, base: str) -> None:
    """Check that the CPU time of a tool's builds is counted.

    Args:
        tool: the tool.
        folder: a new folder.
        base: the reference of the base image.

    Raises:
        CommandFailed: the containers of builds are not in the cgroup.
    """
    folder.mkdir()
    (folder / "Dockerfile").write_text(_BURN.format(base=base, seconds=_BURN_S))
    cpu = tool.run(folder)["cpu"]
    tool.forget()
    if cpu < _BURN_S:
        raise CommandFailed(
            f"of a build that uses {_BURN_S} s of CPU time {cpu:.2f} s were counted"
        )


@contextlib.contextmanager
def docker_rival(suite: Suite, group: Cgroup, traffic: Traffic, base: str) -> Iterator[Docker]:
    """Start a Docker engine, and pull the base image."""
    with docker_engine(suite, group) as engine:
        yield Docker(engine, group, traffic, base)


@contextlib.contextmanager
def buildah_rival(suite: Suite, group: Cgroup, traffic: Traffic, base: str) -> Iterator[Buildah]:
    """Make storage for buildah, and pull the base image."""
    with podman_storage(suite) as podman:
        yield Buildah(podman, group, traffic, base)


def same_packages(
    docker: Docker, project: Project, workload: Workload, reference: str
) -> dict[str, Any]:
    """Compare the distributions in docker's first image and in builder's, as the Python in each lists them.

    Args:
        docker: the engine.
        project: what the base of docker's image contains besides the workload.
        workload: what is installed.
        reference: builder's image in the registry.
    """
    theirs = docker.packages()
    docker.engine.docker("pull", "--quiet", reference)
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
