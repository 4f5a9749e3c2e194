"""What a locked wheel is built from again."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.lock.spec import SourceSpec
from builder.model import WHEELS, LockedPackage, LockedSource
from builder.net.pipconfig import PipConfiguration
from builder.settings import Settings
from builder.store.blobs import Store
from builder.wheels import builder
from builder.wheels.builder import ImageWheelBuilder

LINE = "tool @ git+https://$USER_NAME:$TOKEN@host.example/tool.git@main"


def wheel_builder(root: Path, platform: str = "linux-64") -> ImageWheelBuilder:
    (root / "e.yml").write_text(f"dependencies: [python, pip: ['{LINE}']]\n")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "platform": platform}
    recipe = Recipe.model_validate({**values, "root": root, "source": root / "t.yaml"})
    settings = Settings.from_environment({"HOME": str(root)}, cache=root / "cache")
    return ImageWheelBuilder(recipe, settings, Store(root / "cache"))


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a URL are replaced in the user's own line (which has a place), never in a lock's."""
    opened: list[tuple[SourceSpec, Any]] = []

    @contextmanager
    def open_source(spec: SourceSpec, *_: object, pinned: LockedSource) -> Any:
        opened.append((spec, pinned))
        yield None

    monkeypatch.setattr(builder, "open_source", open_source)
    monkeypatch.setattr(ImageWheelBuilder, "_wheel", lambda *_: SimpleNamespace(sha256="1" * 64))
    for repository, place in (("tool", "e.yml:1"), ("other", "")):
        url = f"https://$USER_NAME:$TOKEN@host.example/{repository}.git"
        source = LockedSource("git", url, commit="c" * 40, tree="d" * 40)
        name = "tool-1.0-py3-none-any.whl"
        package = LockedPackage("tool", "1.0", "pip", "linux-64", WHEELS + name, "1" * 64, source=source)
        wheel_builder(tmp_path).rebuild(package, [])
        spec, pinned = opened.pop()
        assert pinned == source and spec.revision == "c" * 40
        assert spec.url == url and spec.where.rpartition("/")[2] == place


def test_wheel_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine a build with the same inputs takes the wheel from the project's folder."""
    monkeypatch.setattr("builder.net.findlinks.pip_configuration", lambda: PipConfiguration())
    data, name = b"a wheel", "tool-1.0-py3-none-any.whl"
    digest = hashlib.sha256(data).hexdigest()
    source = LockedSource("local", ".", tree="1" * 64, build="2" * 64)
    package = LockedPackage("tool", "1.0", "pip", "linux-64", WHEELS + name, digest, source=source)
    wheels = wheel_builder(tmp_path)
    wheels.locked = (package,)
    found = replace(source, build="")
    assert wheels._known(found, "2" * 64, None, None) is None
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(data)
    assert wheels._known(found, "3" * 64, None, None) is None, "another build"
    assert wheels._known(found, "2" * 64, "other", None) is None, "another name"
    known = wheels._known(found, "2" * 64, "tool", None)
    assert known is not None and (known.filename, known.sha256, known.locked) == (name, digest, source)
    assert known.path.read_bytes() == data
