"""What a finished wheel must fulfil."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from builder.build.wheels.run import check_wheel
from builder.core.errors import LayerError, WheelError
from builder.core.model import Fetched
from builder.lock.config.recipe import Recipe
from tests.support.wheels import make_wheel

TAG = "cp311-cp311-linux_x86_64"


def check(folder: Path) -> Fetched:
    recipe = Recipe.model_validate({"name": "t", "base": "debian:bookworm", "environment": "e.yml"})
    return check_wheel(folder, "demo", "demo", recipe, "3.11.2")


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
    make_wheel(tmp_path, tag=tag)
    if accepted:
        assert check(tmp_path).package.version == "1.0"
        return
    with pytest.raises(WheelError, match=r"which is not for Python 3\.11\.2 on linux-64"):
        check(tmp_path)


def test_not_one_wheel(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="made no wheel"):
        check(tmp_path)
    shutil.copy(make_wheel(tmp_path), tmp_path / "x-1-py3-none-any.whl")
    with pytest.raises(WheelError, match="and made demo-1.0-py3-none-any.whl, x-1-py3-none-any.whl"):
        check(tmp_path)


def test_link(tmp_path: Path) -> None:
    """The container may write a link to a file of the host."""
    path = make_wheel(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / path.name).symlink_to(path)
    with pytest.raises(WheelError, match="has to make one wheel"):
        check(tmp_path / "out")


def test_hostile(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../etc/passwd", "x")
    with pytest.raises(LayerError, match="unsafe member"):
        check(tmp_path)
