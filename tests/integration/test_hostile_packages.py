"""Hostile wheels and conda packages in images: built and run, nothing outside the target folder changes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.build.run.base import RunOptions
from builder.core.model import Image
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.integration.conftest import working_runner
from tests.support import parts
from tests.support.hostile import OUTSIDE, build_and_unpack, hostile_image, package_layers

#: A program in the image that lists the environment, and writes where the packages point.
TOUCH = f"ls /opt/conda >/dev/null; cat {OUTSIDE}/file; (: >{OUTSIDE}/made); echo done"


def listing(folder: Path) -> dict[str, tuple[object, ...]]:
    """Type, mode, owner, size, time and content of everything in a folder."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (info.st_mode, info.st_uid, info.st_size, info.st_mtime_ns, data)
    return found


@pytest.fixture
def sentinel() -> Iterator[Path]:
    """The folder that the packages point to. Everybody may write to it, and nothing in it changes."""
    folder = Path(OUTSIDE)
    folder.mkdir()
    try:
        (folder / "folder").mkdir()
        (folder / "file").write_text("untouched\n")
        for path in (folder, folder / "folder", folder / "file"):
            path.chmod(0o777)
        before = listing(folder)
        yield folder
        assert listing(folder) == before
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Image, Settings, Store]:
    return hostile_image(tmp_path_factory.mktemp("hostile") / "build")


def assert_alone(folder: Path) -> None:
    """Asserts that a build left nothing beside what it was asked for."""
    assert {p.name for p in folder.parent.iterdir()} == {folder.name}
    made = {"packages", "cache", "refused", "rootfs", "rootfs.tar", "dist", "unpacked"}
    assert {p.name for p in folder.iterdir()} == made
    assert not any((folder / "refused" / "spool").glob("*")) and not any((folder / "cache/tmp").glob("*"))


def test_as_this_user(sentinel: Path, tmp_path: Path) -> None:
    """Built and unpacked by the user who runs the tests: root in CI."""
    build_and_unpack(tmp_path / "alone" / "build")
    assert_alone(tmp_path / "alone" / "build")


@pytest.mark.root
def test_as_ordinary_user(
    sentinel: Path, ordinary_user: parts.OrdinaryUser, image: tuple[Image, Settings, Store]
) -> None:
    """Built and unpacked by an ordinary user: the same layers as root's."""
    folder = ordinary_user.tmp / "alone" / "build"
    code = (
        "from pathlib import Path\n"
        "from tests.support.hostile import build_and_unpack\n"
        f"print(build_and_unpack(Path({str(folder)!r})))\n"
    )
    done = ordinary_user.run([sys.executable, "-c", code], {"PYTHONPATH": str(parts.CLONE)}, timeout=300)
    assert done.stdout.strip() == package_layers(image[0])
    assert_alone(folder)


@pytest.mark.parametrize("name", ["userns", "podman", "docker", "apptainer"])
def test_run(
    name: str,
    image: tuple[Image, Settings, Store],
    sentinel: Path,
    use_runner: Callable[[str], None],
) -> None:
    """Each runner runs the image. Its program finds nothing of the host where the packages point."""
    use_runner(name)
    made, given, store = image
    options = RunOptions(entrypoint=["/bin/sh"], timeout_s=120)
    done = working_runner(name, Workspace(given, store)).run(made, ["-c", TOUCH], options)
    assert "done" in done.stdout and "untouched" not in done.stdout, done.stderr
