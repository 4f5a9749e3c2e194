"""``builder job --jupyter``: a real Jupyter server, in real jobs of Slurm with Apptainer, and in docker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.formats.trees.ignore import Ignore
from tests.integration.conftest import CLONE, Builder, new_project
from tests.support.parts import Apptainer, DockerEngine
from tests.support.programs import run_program
from tests.support.slurm import Slurm
from tests.support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.root, pytest.mark.heavy]
ENVIRONMENT = """\
channels: [conda-forge, nodefaults]
dependencies:
  - python=3.11
  - pip
  - pip: [jupyter_server]
"""
SLURM = """\
extends: cpu
environment: environments/notebook.yml
format: sif
site:
  images: {images}
  runtime: {{kind: apptainer, clean_env: true}}
  node: {{cores: 2, tasks: 2}}
  slurm: {{account: optional, time: "00:10:00", queues: {{cpu: {{partition: debug}}}}}}
"""
DOCKER = """\
extends: cpu
environment: environments/notebook.yml
site:
  runtime: {kind: docker, ranks: [--network=host]}
  launcher: torchrun
"""


@dataclass(frozen=True)
class Server:
    """A server, by what its job printed."""

    host: str
    port: int
    token_file: Path

    @property
    def token(self) -> str:
        return self.token_file.read_text()

    def status(self, token: str = "") -> int:
        """The HTTP status of a request; 0 if nothing answers. Each node of the tests is this machine."""
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/contents", headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def check(self, output: str) -> None:
        """Answers with the token alone, which is in no output, command line or name of a file."""
        until(self.status, 100)
        assert self.status() == self.status("wrong") == 403 and self.status(self.token) == 200
        assert stat.S_IMODE(self.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(self.token_file.parent.stat().st_mode) == 0o700
        assert Ignore(self.token_file.parents[1]).leaves_out(self.token_file.parent, is_folder=True)
        assert re.fullmatch("[0-9a-f]{48}", self.token) and self.token not in output
        assert not [words for words in command_lines() if self.token in words]


def command_lines() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield process.read_bytes().decode(errors="replace")


def printed_server(output: Path) -> Server:
    """The server of a job, when the job has printed its address."""
    pattern = r"ssh -N -L 8888:(\S+):(\d+) LOGIN\n.*\n    ssh LOGIN cat (\S+)\n"
    until(lambda: output.exists() and re.search(pattern, output.read_text()), 100)
    host, port, token_file = re.search(pattern, output.read_text()).groups()  # type: ignore[union-attr]
    return Server(host, int(port), Path(token_file))


def open_configuration(folder: Path) -> str:
    """Writes a configuration with which Jupyter asks nobody for a token; returns its variable."""
    folder.mkdir()
    lines = [f"c.{name}.token = ''" for name in ("ServerApp", "IdentityProvider", "PasswordIdentityProvider")]
    (folder / "jupyter_server_config.py").write_text("\n".join(lines))
    return f"JUPYTER_CONFIG_DIR={folder}"


@pytest.fixture(scope="module")
def project(cpu: Builder, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Targets ``slurm`` and ``docker``, whose environment has jupyter_server."""
    folder = tmp_path_factory.mktemp("notebook")
    root = new_project(folder / "project", "cpu")
    (root / "environments/notebook.yml").write_text(ENVIRONMENT)
    (root / "recipes/slurm.yaml").write_text(SLURM.format(images=root / "dist"))
    (root / "recipes/docker.yaml").write_text(DOCKER)
    return Builder(root, cpu.cache)


def test_slurm(project: Builder, slurm: Slurm, apptainer: Apptainer, tmp_path: Path) -> None:
    """The printed line has the job's node and port. scancel ends the server and removes the token."""
    project.run("build", "slurm")
    env = {**apptainer.env, **slurm.env, "PATH": apptainer.env["PATH"], "PYTHONPATH": str(CLONE)}
    env["APPTAINERENV_JUPYTER_TOKEN"] = "of-the-login-shell"
    command = project.command(
        "job", "slurm", "--jupyter", "--submit", "--env", open_configuration(tmp_path / "jupyter")
    )
    job = run_program(command, env, cwd=tmp_path).stdout.strip()
    output = tmp_path / f"slurm-{job}.out"
    server = printed_server(output)
    server.check(output.read_text())
    assert server.host in ("node1", "node2") and slurm.show(job)[0]["NodeList"] == server.host
    assert server.token_file.parent.parent == tmp_path
    token = server.token
    slurm.run("scancel", job)
    assert slurm.wait(job) == ["CANCELLED"]
    until(lambda: not server.token_file.parent.exists(), 100)
    assert token not in output.read_text() and server.status() == 0


def test_docker(project: Builder, docker_engine: DockerEngine, tmp_path: Path) -> None:
    """Without Slurm the server listens on this machine alone, until the script is interrupted."""
    project.run("build", "docker", "--load", "docker", env=docker_engine.env)
    image, config = "builder/docker:latest", open_configuration(tmp_path / "jupyter")
    script = project.run("job", "docker", "--jupyter", "--image", image, "--env", config).stdout
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-c", script],
            env={**os.environ, **docker_engine.env},
            cwd=tmp_path,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = printed_server(output)
    server.check(output.read_text())
    assert server.host == "127.0.0.1" and f"image: {image}, " in output.read_text()
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
    process.wait(100)
    assert not server.token_file.parent.exists() and server.status() == 0
