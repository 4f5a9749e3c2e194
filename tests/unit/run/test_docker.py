"""Where the docker runner finds its engine, and which GPUs it asks for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from builder.run import docker
from builder.run.docker import DockerRunner, docker_address, docker_gpu_options, remove_docker_leftovers
from builder.run.leftovers import new_tag
from builder.store.blobs import Store
from tests.support.image_kit import settings


class Engine:
    """A docker client that knows its runtimes."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def info(self) -> dict[str, Any]:
        return {"Runtimes": dict.fromkeys(self.names)}


def test_gpu_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    monkeypatch.setattr(docker, "gpu_devices", lambda vendor: found)
    assert docker_gpu_options("nvidia", Engine("runc")) == {} == docker_gpu_options("amd", Engine("runc"))
    (request,) = docker_gpu_options("nvidia", Engine("runc", "nvidia"))[
        "device_requests"
    ]  # a remote engine, perhaps
    assert request["Count"] == -1 and request["Capabilities"] == [["gpu"]]
    (tmp_path / "kfd").touch()
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    os.chown(tmp_path / "kfd", -1, os.getgid())
    found[:] = [tmp_path / "dri", tmp_path / "kfd"]
    options = docker_gpu_options("amd", Engine("runc"))
    assert options["devices"] == [f"{p}:{p}:rwm" for p in found]
    assert options["group_add"] == [str(g) for g in {os.getgid()} - {0}]


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def test_docker_context(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST, DOCKER_CONTEXT and the configuration have docker's own order."""
    from docker.context import ContextAPI

    monkeypatch.setattr(docker.shutil, "which", lambda name: f"/usr/bin/{name}")  # docker is installed
    assert docker_address() == {}
    ContextAPI.create_context("mine", host=f"unix://{tmp_path}/mine.sock")
    assert docker_address() == {}
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert docker_address()["base_url"].endswith(f"{tmp_path}/mine.sock")
    assert f"{tmp_path}/mine.sock" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())
    monkeypatch.delenv("DOCKER_CONTEXT")
    (docker_config / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    assert docker_address()["base_url"].endswith("mine.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/other.sock")  # wins, as on the command line
    assert docker_address() == {}
    assert "other.sock" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())


def test_missing_context(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    assert "gone" in str(DockerRunner(settings(tmp_path), Store(tmp_path)).available())


def test_password_is_not_shown(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://me:s3cret@127.0.0.1:9")
    said = DockerRunner(settings(tmp_path), Store(tmp_path)).available()
    assert said and "s3cret" not in said


def test_killed_processes() -> None:
    """Containers and images of killed processes are removed; what is in use, or of others, stays."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    own = new_tag()
    killed = own.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    elsewhere = f"blob-{'0' * 16}-1-{'0' * 16}"
    removed: list[str] = []

    class Container:
        def __init__(self, label: str) -> None:
            self.labels = {"org.builder.run": label}

        def remove(self, **options: bool) -> None:
            assert options == {"force": elsewhere not in self.labels.values(), "v": True}
            removed.append(self.labels["org.builder.run"])

    def remove(name: str) -> None:
        if "mine" in name:
            raise AssertionError(name)
        removed.append(name)
        raise APIError("conflict: a container uses the image")

    images = [
        SimpleNamespace(tags=[f"builder-run:{killed}", "mine:1"]),
        SimpleNamespace(tags=[f"builder-run:{own}"]),
    ]
    client = SimpleNamespace(
        containers=SimpleNamespace(
            list=lambda **options: [Container(name) for name in (killed, own, elsewhere)]
        ),
        images=SimpleNamespace(list=lambda name: images, remove=remove),
    )
    remove_docker_leftovers(client)
    assert removed == [killed, f"builder-run:{killed}"]
    removed.clear()
    remove_docker_leftovers(client, elsewhere=True)
    assert removed == [killed, elsewhere, f"builder-run:{killed}"], "docker refuses to remove one that runs"
