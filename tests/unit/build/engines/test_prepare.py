"""What every engine does first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases.image import BaseImage
from builder.build.engines import prepare
from builder.build.engines.base import BuildRequest
from builder.build.engines.prepare import image_of_build, open_locked_base, ordered_packages
from builder.build.steps import apt_install, apt_solve
from builder.build.steps.apt_install import OsInstall
from builder.core.errors import ImageError, LockError
from builder.core.model import Layer, LockedBase, LockRecord, OsPackage
from builder.core.stages import BuildOptions
from builder.core.store.blobs import Store
from builder.lock.config.recipe import Recipe
from tests.support import image_kit
from tests.support.engines import HASH, package, request
from tests.support.reporters import Notes

HELLO = OsPackage("hello", "2.10-3", "amd64", "http://deb.debian.org/debian/pool/h/hello.deb", HASH, 5)


def test_base_of_a_foreign_lock(tmp_path: Path) -> None:
    """A lock that was named on the command line does not replace the recipe's base."""
    made = request(tmp_path)
    evil = replace(made.lock, base=LockedBase("docker://host.example/evil:1", f"sha256:{HASH}"))
    with pytest.raises(LockError, match=r"pins the base docker://host\.example/evil:1, and .*t\.yaml names"):
        open_locked_base(replace(made, lock=evil))


@pytest.mark.parametrize(
    ("count", "recipe", "wheel_of", "refused"),
    [
        (125, {}, None, False),
        (126, {}, None, True),
        (126, {"format": "sif"}, None, False),  # it has no layers
        (126, {"site": {"runtime": {"kind": "pyxis"}, "slurm": {}}}, None, False),  # runs a squashfs
        (126, {}, "", False),  # the image in which the wheel of a target with format: sif is built
    ],
)
def test_most_layers(
    tmp_path: Path, count: int, recipe: dict[str, Any], wheel_of: str | None, refused: bool
) -> None:
    """An OCI image has no more layers than Docker takes."""
    store = Store(tmp_path / "store")
    one = image_kit.layer(store, image_kit.member("a", b""))
    base = image_kit.base(*[one] * (count - 4))
    made = replace(request(tmp_path, **recipe), wheel_of=wheel_of)
    if refused:
        with pytest.raises(ImageError, match="of target t needs 126 layers, 122 of them of its base") as e:
            image_of_build(made, base, [one] * 4, {})
        assert "format: sif" in e.value.hint and "crane flatten" in e.value.hint
    else:
        assert len(image_of_build(made, base, [one] * 4, {}).layers) == count


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Opens a made-up base; collects whether its layers were asked for."""
    calls: list[bool] = []

    def open_base(*_: object, download: bool, **__: object) -> BaseImage:
        calls.append(download)
        return image_kit.base(reference="docker://host.example/os:1")

    monkeypatch.setattr(prepare, "open_base", open_base)
    return calls


def os_request(tmp_path: Path, packages: tuple[OsPackage, ...]) -> BuildRequest:
    made = request(tmp_path, base="docker://host.example/os:1", base_packages=["hello"])
    base = LockedBase("docker://host.example/os:1", f"sha256:{HASH}")
    return replace(made, lock=replace(made.lock, base=base, record=LockRecord(os_packages=packages)))


def test_os_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[bool]) -> None:
    """The OS packages are the base's topmost layer; the base is downloaded only to make it."""
    store = Store(tmp_path / "cache")
    layer = image_kit.layer(store, image_kit.member("usr/bin/hello", b"x"))
    made: list[OsInstall] = []

    def os_layer(install: OsInstall, complete: Callable[[], BaseImage], *_: object) -> Layer:
        complete()
        made.append(install)
        return layer

    monkeypatch.setattr(apt_install, "os_layer", os_layer)
    wanted = replace(os_request(tmp_path, (HELLO,)), options=BuildOptions(download_base=False))
    assert open_locked_base(wanted).layers[-1] == layer
    assert opened == [False, True] and made[0].packages == (HELLO,)

    monkeypatch.setattr(apt_install, "os_layer", lambda *_: layer)
    assert open_locked_base(wanted).added == (layer,)
    assert opened == [False, True, False] and len(made) == 1


def test_packages_of_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[bool]) -> None:
    """The build of a wheel adds a layer to the target's own base, also to one that builder makes."""
    layer = image_kit.layer(Store(tmp_path / "cache"), image_kit.member("usr/bin/gcc", b"x"))
    asked: list[tuple[str, ...]] = []

    def solve(recipe: Recipe, *rest: object) -> tuple[OsPackage, ...]:
        asked.append((*recipe.base_packages, *map(str, rest[2:])))
        return (HELLO,)

    monkeypatch.setattr(apt_solve, "solve_os_packages", solve)
    monkeypatch.setattr(apt_install, "os_layer", lambda *_: layer)
    for base, packages in (("debian:bookworm", ["gcc"]), ("docker://host.example/os:1", ["hello", "gcc"])):
        values = {"base_packages": ["hello"], "pip": {"build": {"demo": {"base_packages": ["gcc"]}}}}
        made = request(tmp_path, base=base, **values)
        lock = replace(made.lock, base=LockedBase(base, f"sha256:{HASH}"), record=LockRecord())
        work = replace(made.work, reporter=(notes := Notes()))
        assert open_locked_base(replace(made, lock=lock, work=work, wheel_of="demo")).layers[-1] == layer
        assert asked.pop() == (*packages, "pip", "build", "demo", "base_packages")
        note = "the image in which wheels are built gets the newest ones"  # not its name, which nobody knows
        assert notes.notes.pop() == f"the lock has no versions of OS packages: {note}"
    assert opened == [True, True]


@pytest.mark.parametrize(
    "url", ["https://h.example/tool-1.0.tar.gz", f"git+https://h.example/tool.git@{'c' * 40}"]
)
def test_source_in_a_lock_of_conda_lock(tmp_path: Path, url: str) -> None:
    """It has to be built, which no build does: before anything is downloaded the message names it."""
    made = request(tmp_path, [package("tool", "pip", url=url)])
    with pytest.raises(LockError, match="tool is locked from its source") as caught:
        ordered_packages(made.recipe, made.lock)
    assert f"tool @ {url}" in caught.value.hint


def test_order_of_a_list(tmp_path: Path) -> None:
    """That of an explicit list stays; else names decide where there are no dependencies."""
    made = request(tmp_path, [package(name) for name in ("b", "a", "c")])
    assert [p.name for p in ordered_packages(made.recipe, made.lock)] != ["b", "a", "c"]
    listed = replace(made.lock, record=LockRecord(link_order="b a c"))
    assert [p.name for p in ordered_packages(made.recipe, listed)] == ["b", "a", "c"]
