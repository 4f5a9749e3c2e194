"""``builder services``: bad input, before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from builder.cli import cli, run
from tests.unit.services.conftest import Fails, Program


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lumi"], "needs? docker or podman.*--engine docker"),
        (["trained", "--port", "grafana=3000"], "no such service.*mlflow, ray"),
        (["trained", "--port", "mlflow=80"], "not a port.*--port mlflow=8000"),
        (["trained", "--s3", "https://host"], "needs the keys.*--s3-keys FILE"),
        (["trained", "--s3-keys", "x"], "needs the address.*--s3 https://"),
        (["a100", "--workers", "1"], "fewer than the 2 GPUs.*--gpus 1"),
        (["trained", "--name", "A"], "not a name"),
    ],
)
def test_bad_options(docker: Program, fails: Fails, args: list[str], message: str) -> None:
    import re

    assert re.search(message, fails("up", *args))
    assert docker.calls() == []


def test_no_engine(project: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    assert "docker is not installed -> install it" in fails("up", "trained")


def test_no_compose(docker: Program, fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    (docker.folder / "compose").write_text("1")
    (docker.folder / "cat").symlink_to("/bin/cat")
    (docker.folder / "dirname").symlink_to("/usr/bin/dirname")
    (docker.folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(docker.folder))
    assert "docker compose is not installed -> install the package" in fails("up", "trained")


def test_taken_port(docker: Program, fails: Fails) -> None:
    """The error names the service and an option for another port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = fails("up", "trained", "--port", f"mlflow={port}")
    assert f"port {port}, which mlflow needs, is used by another program" in said
    assert f"--port mlflow={port + 1}" in said
    assert "is given to" in fails("up", "trained", "--port", "mlflow=8265")


def test_missing_image(docker: Program, fails: Fails) -> None:
    said = fails("up", "trained", "--image", "registry.example.org/me/x:1")
    assert said.endswith("docker pull registry.example.org/me/x:1")


def test_not_started(docker: Program, fails: Fails) -> None:
    for command in ("status", "down"):
        assert "no servers were started here" in fails(command)
    assert "builder services up TARGET" in fails("submit", "--", "true")


def test_cluster_not_up(
    docker: Program, fails: Fails, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job for a stack that is down, or for another target than the cluster's."""
    folder = tmp_path / "state/builder/services/services"
    assert run(cli, ["services", "up", "trained", "--output", str(folder)]) == 0
    capsys.readouterr()
    assert "does not answer: missing -> builder services up trained" in fails("submit", "--", "true")
    assert "the cluster runs trained, not a100" in fails("submit", "a100", "--", "true")
    assert run(cli, ["services", "status"]) == 1
    assert "missing" in capsys.readouterr().out
    assert run(cli, ["services", "down", "--remove-data", "--yes"]) == 0
    assert docker.calls()[-1].endswith("down --remove-orphans --volumes")
    assert not folder.exists()


def test_token_stays(docker: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the cluster is down another user's program can have its port: it is not sent the token."""
    folder = tmp_path / "state/builder/services/services"
    assert run(cli, ["services", "up", "trained", "--output", str(folder)]) == 0
    monkeypatch.setattr("builder.services.health.cluster", lambda stack, state: pytest.fail("token sent"))
    assert run(cli, ["services", "status"]) == 1
