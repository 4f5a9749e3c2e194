"""The trial of ``builder doctor`` with real engines, and what runs leave in their storage."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.build.run.select import runner_classes
from builder.build.run.trial import Problem, try_runner
from tests.support.parts import CLONE, Apptainer, DockerEngine, OrdinaryUser, Podman, need
from tests.support.podman_hpc import podman_hpc

RUN = """\
import os, signal, sys
from pathlib import Path
from builder.build.run.base import RunOptions
from builder.build.run.select import runner_classes
from builder.build.run.trial import trial_image
from builder.core.settings import Settings
from builder.core.workspace import Workspace

name, how, folder = sys.argv[1:]
settings = Settings(Path(folder), Path(folder) / "tmp", 1)
work = Workspace.of(settings)
runner = next(kind for kind in runner_classes() if kind.name == name)(work)
command = "/missing" if how == "fails" else "/trial"
print(runner.run(trial_image(work), [command], RunOptions(timeout_s=300)).returncode, flush=True)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""
Images = Callable[[], list[str]]


def try_named(name: str) -> Problem | None:
    return try_runner(next(kind for kind in runner_classes() if kind.name == name))


def check_leftovers(name: str, images: Images, folder: Path) -> None:
    """Nothing is left after a failure; after SIGKILL, until the next run."""

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RUN, name, how, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    before = images()
    assert run("fails").returncode == 1 and images() == before
    assert run("killed").returncode == -signal.SIGKILL and len(images()) == len(before) + 1
    assert run("works").stdout == "42\n" and images() == before, "the next run removes it"


@pytest.mark.docker
def test_docker(docker_engine: DockerEngine, tmp_path: Path, use_runner: Callable[[str], None]) -> None:
    use_runner("docker")

    def images() -> list[str]:
        return sorted(docker_engine.docker("images", "--all", "--quiet").stdout.split())

    before = images()
    assert try_named("docker") is None and set(images()) <= set(before)
    assert docker_engine.docker("ps", "--all", "--quiet").stdout == ""
    check_leftovers("docker", images, tmp_path)
    assert docker_engine.docker("ps", "--all", "--quiet").stdout == ""


@pytest.mark.podman
@pytest.mark.parametrize("name", ["podman", "podman-hpc"])
def test_podman(name: str, podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = podman if name == "podman" else podman_hpc(tmp_path / "hpc", podman)
    for key, value in part.env.items():
        monkeypatch.setenv(key, value)

    def images() -> list[str]:
        return sorted(part.run("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split())

    before = images()
    assert try_named(name) is None and set(images()) <= set(before)
    if name == "podman":
        check_leftovers(name, images, tmp_path / "cache")
    assert part.run("ps", "--all", "--quiet").stdout == ""


@pytest.mark.podman
def test_limits_of_podman(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the hint make podman work where it may not set its own limits."""
    for key, value in podman.env.items():
        monkeypatch.setenv(key, value)
    conf = Path(podman.env["CONTAINERS_CONF"])
    lines = [line for line in conf.read_text().splitlines() if "default_ulimits" not in line]
    own = tmp_path / "containers.conf"
    own.write_text("\n".join(lines))
    monkeypatch.setenv("CONTAINERS_CONF", str(own))
    problem = try_named("podman")
    if problem is None:
        pytest.skip("podman may set its own limits here")
    assert "rlimit" in problem.reason
    (limits,) = [line.strip() for line in problem.hint.splitlines() if "default_ulimits" in line]
    own.write_text("\n".join(lines).replace("[containers]", f"[containers]\n{limits}"))
    assert try_named("podman") is None


PAUSE = """\
from builder.build.run.podman import PodmanRunner, pause_process_ends
from builder.build.run.trial import try_runner
with pause_process_ends():
    print(try_runner(PodmanRunner))
"""


@pytest.mark.podman
@pytest.mark.root
def test_pause_process(ordinary_user: OrdinaryUser) -> None:
    """Of an ordinary user (podman 4.3), none is left that the trial started, and one of before is left."""
    need("podman", "runc", "newuidmap")
    env = {**ordinary_user.podman_environment(), "PYTHONPATH": str(CLONE)}

    def running() -> list[str]:
        words = ["ps", "-o", "comm=", "-o", "stat=", "-U", str(ordinary_user.uid)]
        lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
        return [line.rpartition(" ")[0].strip() for line in lines if not line.split()[-1].startswith("Z")]

    for _ in range(2):
        assert ordinary_user.run([sys.executable, "-c", PAUSE], env).stdout == "None\n"
        assert running() == []
    ordinary_user.run(["podman", "ps"], env)
    (pause,) = before = running()
    assert pause in ("podman pause", "catatonit")
    assert ordinary_user.run([sys.executable, "-c", PAUSE], env).stdout == "None\n"
    assert running() == before


@pytest.mark.apptainer
def test_apptainer(apptainer: Apptainer, use_runner: Callable[[str], None]) -> None:
    use_runner("apptainer")
    assert try_named("apptainer") is None
