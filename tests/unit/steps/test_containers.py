"""The topmost layer of an image that an engine saved; which engine is taken."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from builder.errors import ImageError, RunnerError
from builder.steps import containers
from builder.steps.containers import first_engine, top_layer


def saved(path: Path, layers: list[str], **contents: bytes) -> Path:
    """An archive as ``docker save`` writes it."""
    files = {"manifest.json": json.dumps([{"Config": "c.json", "Layers": layers}]).encode(), **contents}
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_top_layer(tmp_path: Path) -> None:
    archive = saved(tmp_path / "a.tar", ["one", "two"], one=b"below", two=b"above")
    layer = top_layer(archive, 1, tmp_path / "top")
    assert layer is not None and layer.path is not None and layer.path.read_bytes() == b"above"
    assert top_layer(archive, 2, tmp_path / "top") is None, "the step changed nothing"


@pytest.mark.parametrize("layers", [["missing"], "x"])
def test_damaged(tmp_path: Path, layers: list[str]) -> None:
    archive = saved(tmp_path / "a.tar", layers)
    with pytest.raises(ImageError, match="cannot be read"):
        top_layer(archive, 0, tmp_path / "top")


def test_first_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker, then podman; else the reason of each."""
    monkeypatch.setattr(containers, "docker_problem", lambda: None)
    assert first_engine("refused") == "docker"
    monkeypatch.setattr(containers, "docker_problem", lambda: "not installed")
    monkeypatch.setattr(containers.shutil, "which", lambda name: f"/bin/{name}" if name == "podman" else None)
    assert first_engine("refused") == "podman"
    monkeypatch.setattr(containers.shutil, "which", lambda name: None)
    with pytest.raises(RunnerError) as caught:
        first_engine("refused")
    assert "userns: refused\n  docker: not installed\n  podman: not installed" in caught.value.message
