"""What a finished wheel must fulfil."""

from __future__ import annotations

import shutil
import sysconfig
import zipfile
from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.errors import LayerError, WheelError
from builder.layers.entry import Entry
from builder.wheels.check import CheckedWheel, check_wheel, missing_libraries

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


def elf() -> bytes:
    """A shared library of this machine: an extension module of Python, or the one of its interpreter."""
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    return next(iter(sorted(folder.glob("_ssl*.so")))).read_bytes()


def test_checked(tmp_path: Path) -> None:
    path = wheel(tmp_path, demo__py=b"x = 1\n")
    assert check(tmp_path) == CheckedWheel(path, "demo", "1.0", frozenset(), False)
    wheel(tmp_path, metadata="Metadata-Version: 2.1\nName: Demo\nVersion: 1.0\nRequires-Dist: torch\n")
    assert check(tmp_path, None).has_requirements


@pytest.mark.parametrize(
    ("tag", "accepted"),
    [
        ("py3-none-any", True),
        (TAG, True),
        ("cp38-abi3-linux_x86_64", True),
        ("cp312-cp312-linux_x86_64", False),
        ("cp311-cp311-linux_aarch64", False),
        ("cp311-cp311-macosx_11_0_x86_64", False),
    ],
)
def test_tags(tmp_path: Path, tag: str, accepted: bool) -> None:
    wheel(tmp_path, tag)
    if accepted:
        assert check(tmp_path).version == "1.0"
        return
    with pytest.raises(WheelError, match=r"which is not for Python 3\.11\.2 on linux-64"):
        check(tmp_path)


def test_other_package(tmp_path: Path) -> None:
    wheel(tmp_path)
    with pytest.raises(WheelError, match="is that of the package demo, not model") as e:
        check(tmp_path, "model")
    assert "demo @ URL" in e.value.hint


@pytest.mark.parametrize("metadata", ["Name: other\nVersion: 1.0\n", "Name: demo\nVersion: 2\n", "\n"])
def test_other_metadata(tmp_path: Path, metadata: str) -> None:
    wheel(tmp_path, metadata=metadata)
    with pytest.raises(WheelError, match="the metadata of its wheel"):
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


def test_libraries(tmp_path: Path) -> None:
    """Libraries that the wheel itself has, and those of the C library, are not asked for."""
    wheel(tmp_path, TAG, demo__so=elf())
    needed = check(tmp_path).libraries
    assert any(name.startswith("libssl.so") for name in needed) and "libc.so.6" not in needed
    wheel(tmp_path, TAG, demo__so=elf(), **{name.replace(".", "__"): b"" for name in needed})
    assert not check(tmp_path).libraries


def test_other_processor(tmp_path: Path) -> None:
    wheel(tmp_path, "cp311-cp311-linux_aarch64", demo__so=elf())
    with pytest.raises(WheelError, match=r"demo\.so in its wheel is for another processor than aarch64"):
        check(tmp_path, platform="linux-aarch64")


def test_damaged_library(tmp_path: Path) -> None:
    wheel(tmp_path, TAG, demo__so=b"\x7fELF\x02\x01\x01" + b"\xff" * 80)
    with pytest.raises(WheelError, match="damaged"):
        check(tmp_path)


def test_missing_libraries(tmp_path: Path) -> None:
    from builder.layers.build import make_layer
    from builder.settings import Settings
    from builder.store.blobs import Store

    settings = Settings.from_environment(cache=tmp_path)
    store = Store(tmp_path)
    entries = [Entry("usr/lib/libmpi.so.12", "file"), Entry("opt/x/libother.so", "symlink", target="x")]
    layer = make_layer(entries, "x", settings, store)
    checked = CheckedWheel(tmp_path, "demo", "1", frozenset({"libmpi.so.12", "libcuda.so.1"}), False)
    assert missing_libraries(checked, lambda: [layer], store) == ["libcuda.so.1"]


def test_no_libraries_read_no_layer(tmp_path: Path) -> None:
    from builder.store.blobs import Store

    checked = CheckedWheel(tmp_path, "demo", "1", frozenset(), False)
    assert missing_libraries(checked, lambda: pytest.fail("read"), Store(tmp_path)) == []
