"""Command lines from image configs, and checks of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.run import base
from builder.build.run.base import ImageConfig, Mount
from builder.core.errors import RunnerError
from builder.core.store.blobs import Store
from tests.support.image_kit import image


def test_command_line(tmp_path: Path) -> None:
    """It follows docker's rules for entry point and command."""
    made = image(Store(tmp_path), cmd=["python"], env={"A": "b=c"}, workdir="/work")
    config = ImageConfig.of(made)
    assert config.env["A"] == "b=c" and config.workdir == "/work"
    assert config.arguments([], None) == ["/opt/builder/entrypoint", "python"]
    assert config.arguments(["ls", "-l"], None) == ["/opt/builder/entrypoint", "ls", "-l"]
    assert config.arguments(["-c", "x"], ["sh"]) == ["sh", "-c", "x"]
    assert config.arguments([], ["sh"]) == ["sh"]  # another entry point drops the image's command
    assert config.arguments(["ls"], []) == ["ls"]
    with pytest.raises(RunnerError, match="neither entry point nor command"):
        config.arguments([], [])
    bare = ImageConfig.of(image(Store(tmp_path), entrypoint=[], cmd=[]))
    with pytest.raises(RunnerError, match="neither"):
        bare.arguments([], None)


@pytest.mark.parametrize(
    ("target", "said"),
    [("data", "not an absolute path"), ("/", "not an absolute path"), ("/a/../..", "not an absolute path")],
)
def test_mount_target(target: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match=said):
        Mount(tmp_path, target).check()


def test_mount_source(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="does not exist"):
        Mount(tmp_path / "gone", "/data").check()
    (tmp_path / "a:b").mkdir()
    Mount(tmp_path / "a:b", "/data").check()
    with pytest.raises(RunnerError, match="':' in the path"):
        Mount(tmp_path / "a:b", "/data").check(forbidden=":,")


def test_foreign_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start an image for another processor only where the host has registered qemu."""
    monkeypatch.setattr(base, "host_architecture", lambda: "amd64")
    registered: list[str] = []
    monkeypatch.setattr(base, "is_registered", registered.__contains__)
    config = ImageConfig({}, [], ["sh"], "/", "arm64")
    with pytest.raises(RunnerError, match="podman: the image is for arm64, this host is amd64") as caught:
        config.require_registered("podman")
    assert "the runner userns registers qemu itself" in caught.value.hint
    registered.append("arm64")
    config.require_registered("podman")
    for own in ("amd64", ""):
        ImageConfig({}, [], ["sh"], "/", own).require_registered("podman")
