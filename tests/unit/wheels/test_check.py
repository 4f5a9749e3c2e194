"""What a finished wheel must fulfil."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.errors import LayerError, WheelError
from builder.wheels.check import CheckedWheel, check_wheel

TAG = "cp311-cp311-linux_x86_64"


def recipe(platform: str = "linux-64") -> Recipe:
    return Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "platform": platform}
    )


def wheel(folder: Path, tag: str = "py3-none-any", metadata: str = "", **files: bytes) -> Path:
    """A wheel demo 1.0 with further members (a double underscore in a name is a dot)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"demo-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "demo-1.0.dist-info/METADATA", metadata or "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
        )
        archive.writestr("demo-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr("demo-1.0.dist-info/RECORD", "")
        for name, data in files.items():
            archive.writestr(name.replace("__", "."), data)
    return path


def check(folder: Path, name: str | None = "demo", platform: str = "linux-64") -> CheckedWheel:
    return check_wheel(folder, "demo", name, recipe(platform), "3.11.2")


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        ("py3-none-any", True),
        (TAG, True),
        ("cp312-cp312-linux_x86_64", False),
        ("cp311-cp311-linux_aarch64", False),
    ],
)
def test_tags(tmp_path: Path, tag: str, accepted: bool) -> None:
    wheel(tmp_path, tag)
    if accepted:
        assert check(tmp_path).version == "1.0"
        return
    with pytest.raises(WheelError, match=r"which is not for Python 3\.11\.2 on linux-64"):
        check(tmp_path)


def test_not_one_wheel(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="made no wheel"):
        check(tmp_path)
    shutil.copy(wheel(tmp_path), tmp_path / "x-1-py3-none-any.whl")
    with pytest.raises(WheelError, match="and made demo-1.0-py3-none-any.whl, x-1-py3-none-any.whl"):
        check(tmp_path)


def test_link(tmp_path: Path) -> None:
    """The container may write a link to a file of the host."""
    path = wheel(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / path.name).symlink_to(path)
    with pytest.raises(WheelError, match="has to make one wheel"):
        check(tmp_path / "out")


def test_hostile(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../etc/passwd", "x")
    with pytest.raises(LayerError, match="unsafe member"):
        check(tmp_path)
