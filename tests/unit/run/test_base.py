"""Command lines from image configs, and checks of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RunnerError
from builder.run.base import ImageConfig, Mount, check_mounts
from builder.store.blobs import Store
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
        check_mounts([Mount(tmp_path, target)])


def test_mount_source(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="does not exist"):
        check_mounts([Mount(tmp_path / "gone", "/data")])
    (tmp_path / "a:b").mkdir()
    check_mounts([Mount(tmp_path / "a:b", "/data")])
    with pytest.raises(RunnerError, match="':' in the path"):
        check_mounts([Mount(tmp_path / "a:b", "/data")], forbidden=":,")
