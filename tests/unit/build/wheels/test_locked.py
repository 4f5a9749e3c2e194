"""The built wheels of a lock, in the project and in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.build.wheels import builder
from builder.build.wheels.locked import build_missing_wheels, place_wheels, remove_unnamed
from builder.core.model import WHEELS, Lock, LockedPackage, LockedSource
from builder.core.progress import QUIET
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.net.pipconfig import PipConfiguration
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs

NAME = "demo-1.0-py3-none-any.whl"


def package(store: Store | None, data: bytes) -> LockedPackage:
    """A built wheel; with a store, its file is there."""
    digest = hashlib.sha256(data).hexdigest()
    if store is not None:
        assert store.add(data) == f"sha256:{digest}"
    source = LockedSource("local", ".", tree="1" * 64)
    return LockedPackage("demo", "1.0", "pip", "linux-64", WHEELS + NAME, digest, source=source)


def test_placed(tmp_path: Path) -> None:
    """The wheels of two targets may have one name and different bytes."""
    store = Store(tmp_path / "cache")
    one, two = package(store, b"one"), package(store, b"two")
    for each in (one, two, one, two):
        [path] = place_wheels(Lock((each,), ("linux-64",)), tmp_path, store)
        assert path.read_bytes() == (b"one" if each is one else b"two")
    assert (tmp_path / "wheels" / NAME).read_bytes() == b"one"
    assert (tmp_path / "wheels" / str(two.sha256)[:12] / NAME).read_bytes() == b"two"
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    )
    assert [Path(place).name for place in Inputs.read(recipe).find_links] == ["wheels", str(two.sha256)[:12]]


def test_replaced(tmp_path: Path) -> None:
    """A wheel that no lock of the project names any more is removed; others, and files of the user, stay."""
    store, folder = Store(tmp_path / "cache"), tmp_path / "wheels"
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    recipe = Recipe.model_validate(values)
    (tmp_path / "recipes").mkdir()
    for name in ("t", "u", "v"):
        (tmp_path / f"recipes/{name}.yaml").write_text("base: debian:bookworm\nenvironment: e.yml\n")
    one, two, three = (package(store, data) for data in (b"one", b"two", b"three"))
    for each in (one, two, three):
        place_wheels(Lock((each,), ("linux-64",)), tmp_path, store)
    (tmp_path / "e.u.lock.yml").write_text(f"sha256: {two.sha256}\n")
    mine = folder / "mine-1.0-py3-none-any.whl"
    mine.write_bytes(b"four")
    remove_unnamed([one, two, three], recipe)
    assert sorted(folder.rglob("*.whl")) == [folder / str(two.sha256)[:12] / NAME, mine]
    place_wheels(Lock((one,), ("linux-64",)), tmp_path, store)
    (folder / NAME).write_bytes(b"edited")
    remove_unnamed([one], recipe)
    assert (folder / NAME).read_bytes() == b"edited", "not the wheel that builder built"
    (tmp_path / "recipes/v.yaml").write_text("base: [\n")
    remove_unnamed([two], recipe)
    assert (folder / str(two.sha256)[:12] / NAME).exists(), "what target v names is not known"


def test_built_only_if_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "cache")
    built: list[str] = []

    class Builder:
        def __init__(self, *_: object) -> None: ...

        def rebuild(self, package: LockedPackage, packages: list[LockedPackage]) -> None:
            built.append(package.filename)

    monkeypatch.setattr(builder, "ImageWheelBuilder", Builder)
    monkeypatch.setattr("builder.formats.net.findlinks.pip_configuration", lambda: PipConfiguration())
    settings = Settings.from_environment({"HOME": str(tmp_path)}, cache=tmp_path / "cache")
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    )

    def missing(data: bytes, *, stored: bool) -> list[str]:
        lock = Lock((package(store if stored else None, data),), ("linux-64",))
        built.clear()
        build_missing_wheels(Inputs.read(recipe), lock, Workspace(settings, store, QUIET), lock.packages)
        return built

    assert missing(b"one", stored=True) == []
    assert missing(b"two", stored=False) == [NAME]
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / NAME).write_bytes(b"two")
    assert missing(b"two", stored=False) == []
    assert missing(b"three", stored=False) == [NAME]
