"""What a locked wheel is built from again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.config.recipe import Recipe
from builder.errors import RunnerError, WheelError
from builder.lock.spec import SourceSpec
from builder.model import WHEELS, LockedPackage, LockedSource
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.records import write_record
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


def test_other_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is fetched, unless qemu runs programs of the target's processor."""

    def refuse(architecture: str) -> None:
        raise RunnerError(f"the image is for {architecture}, this host is amd64", "apt-get install qemu")

    monkeypatch.setattr(builder, "emulation", refuse)
    spec = SourceSpec("local", "mine", ".", where="e.yml:3", text="-e .")
    with pytest.raises(WheelError, match=r"e.yml:3: mine @ \.: .*is for arm64") as caught:
        wheel_builder(tmp_path, "linux-aarch64").build(spec, [])
    assert "apt-get install qemu" in caught.value.hint and "wheels/" in caught.value.hint


def test_wheel_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine a build with the same inputs takes the wheel from the project's folder."""
    monkeypatch.setattr("builder.net.findlinks.pip_configuration", lambda: _Nothing)
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


def test_wheel_of_the_shared_cache(tmp_path: Path) -> None:
    """The record of another machine's build names the wheel, which comes with it."""
    wheels = wheel_builder(tmp_path)
    source = LockedSource("local", ".", tree="1" * 64)

    class Shared:
        def find(self, records: Sequence[Path]) -> None:
            found = {"filename": "tool-1.0-py3-none-any.whl", "name": "tool", "version": "1.0"}
            for record in records:
                write_record(record, {**found, "wheel": wheels.store.add(b"a wheel")})

        def note(self, records: Sequence[Path]) -> None: ...

        def send(self) -> None: ...

    wheels.store.shared = Shared()
    known = wheels._known(source, "2" * 64, "tool", None)
    assert known is not None and known.path.read_bytes() == b"a wheel"


def test_record_of_another_name(tmp_path: Path) -> None:
    """A recorded wheel is not used for a requirement that has another name."""
    wheels = wheel_builder(tmp_path)
    (tmp_path / "w").write_bytes(b"a wheel")
    source = LockedSource("local", ".", tree="1" * 64)
    record = {"filename": "tool-1.0-py3-none-any.whl", "name": "tool", "version": "1.0"}
    write_record(wheels._record(source, "2" * 64), {**record, "wheel": wheels._stored(tmp_path / "w")})
    assert wheels._known(source, "2" * 64, "other", None) is None
    for name in ("tool", None):
        known = wheels._known(source, "2" * 64, name, None)
        assert known is not None and known.name == "tool"


def test_name_of(tmp_path: Path) -> None:
    """A folder of the project declares its name; nothing is fetched for other sources."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/pyproject.toml").write_text("[project]\nname = 'My.Tool'\n")
    wheels = wheel_builder(tmp_path)
    assert wheels.name_of(SourceSpec("local", None, "lib")) == "my-tool"
    assert wheels.name_of(SourceSpec("local", None, ".")) is None
    assert wheels.name_of(SourceSpec("git", None, "https://host.example/tool")) is None


class _Nothing:
    index_url = None
    extra_index_urls = find_links = ()
    no_index = True
