"""Where the docker runner finds its engine, and which GPUs it asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from builder.build.run import docker
from builder.build.run.docker import DockerRunner, DockerStorage, docker_address, docker_gpu_options
from builder.core.errors import RunnerError
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support.image_kit import settings
from tests.support.images import make_layer, make_test_image


class Engine:
    """A docker client that knows its runtimes and its image store."""

    def __init__(self, *names: str, status: list[list[str]] | None = None) -> None:
        self.names, self.status = names, status

    def info(self) -> dict[str, Any]:
        return {"Runtimes": dict.fromkeys(self.names), "DriverStatus": self.status}


@pytest.mark.parametrize(
    ("status", "is_manifest"),
    [
        ([["driver-type", "io.containerd.snapshotter.v1"]], True),  # Docker 26.1.5, 28.5.2
        ([["Backing Filesystem", "extfs"], ["Supports d_type", "true"]], False),  # overlay2 of 20.10, 28.5.2
        (None, False),
    ],
)
def test_image_id(tmp_path: Path, status: list[list[str]] | None, is_manifest: bool) -> None:
    """In containerd's image store the id of an image is its manifest's digest, elsewhere its config's."""
    image = make_test_image([make_layer(tmp_path, "a")])
    found = DockerStorage(Engine(status=status)).image_id(image)
    assert found == (image.digest if is_manifest else image.config_descriptor.digest)


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
    assert f"{tmp_path}/mine.sock" in str(
        DockerRunner(Workspace(settings(tmp_path), Store(tmp_path))).available()
    )
    monkeypatch.delenv("DOCKER_CONTEXT")
    (docker_config / "config.json").write_text(json.dumps({"currentContext": "mine"}))
    assert docker_address()["base_url"].endswith("mine.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/other.sock")  # wins, as on the command line
    assert docker_address() == {}
    assert "other.sock" in str(DockerRunner(Workspace(settings(tmp_path), Store(tmp_path))).available())


def test_password_is_not_shown(docker_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://me:s3cret@127.0.0.1:9")
    said = DockerRunner(Workspace(settings(tmp_path), Store(tmp_path))).available()
    assert said and "s3cret" not in said


def test_configuration_is_a_pipe(docker_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker's SDK 7.2 would wait for somebody to write into it, and builder doctor with it."""
    (docker_config / "config.json").unlink()
    os.mkfifo(docker_config / "config.json")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    with pytest.raises(RunnerError, match=r"config\.json is a pipe, not a file"):
        docker_address()
    assert str(docker.docker_problem()).endswith("config.json is a pipe, not a file")
