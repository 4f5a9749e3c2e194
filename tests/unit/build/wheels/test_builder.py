"""What a locked wheel is built from again."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.build.sources import SourceTree
from builder.build.wheels import builder
from builder.build.wheels.backend import Backend
from builder.build.wheels.builder import ImageWheelBuilder
from builder.build.wheels.run import WheelJob
from builder.core.model import WHEELS, Lock, LockedPackage, LockedSource
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cache_key
from builder.formats.net.pipconfig import PipConfiguration
from builder.lock.config.recipe import Recipe
from builder.lock.config.steps import WheelBuild
from builder.lock.inputs import Inputs
from builder.lock.spec import SourceSpec
from tests.support.gitserver import Repo

LINE = "tool @ git+https://$USER_NAME:$TOKEN@host.example/tool.git@main"


def wheel_builder(root: Path, platform: str = "linux-64") -> ImageWheelBuilder:
    (root / "e.yml").write_text(f"dependencies: [python, pip: ['{LINE}']]\n")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "platform": platform}
    recipe = Recipe.model_validate({**values, "root": root, "source": root / "t.yaml"})
    settings = Settings.from_environment({"HOME": str(root)}, cache=root / "cache")
    return ImageWheelBuilder(Inputs.read(recipe), Workspace(settings, Store(root / "cache")))


def test_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a URL are replaced in the user's own line (which has a place), never in a lock's."""
    opened: list[tuple[SourceSpec, Any]] = []
    root = tmp_path

    @contextmanager
    def open_source(spec: SourceSpec, *_: object, pinned: LockedSource) -> Any:
        opened.append((spec, pinned))
        yield SourceTree(root, replace(pinned, build=""), root)

    monkeypatch.setattr(builder, "open_source", open_source)
    monkeypatch.setattr(ImageWheelBuilder, "_wheel", lambda *_: SimpleNamespace(sha256="1" * 64))
    for repository, place in (("tool", "e.yml:1"), ("other", "")):
        url = f"https://$USER_NAME:$TOKEN@host.example/{repository}.git"
        source = LockedSource("git", url, commit="c" * 40, tree="d" * 40)
        name = "tool-1.0-py3-none-any.whl"
        package = LockedPackage("tool", "1.0", "pip", "linux-64", WHEELS + name, "1" * 64, source=source)
        wheel_builder(tmp_path).rebuild(package, Lock((), ("linux-64",)))
        spec, pinned = opened.pop()
        assert pinned == source and spec.revision == "c" * 40
        assert spec.url == url and spec.where.rpartition("/")[2] == place


def test_wheel_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine a build with the same inputs takes the wheel from the project's folder."""
    monkeypatch.setattr("builder.formats.net.findlinks.pip_configuration", lambda: PipConfiguration())
    data, name = b"a wheel", "tool-1.0-py3-none-any.whl"
    digest = hashlib.sha256(data).hexdigest()
    source = LockedSource("local", ".", tree="1" * 64, build="2" * 64)
    package = LockedPackage("tool", "1.0", "pip", "linux-64", WHEELS + name, digest, source=source)
    wheels = wheel_builder(tmp_path)
    wheels.locked = (package,)
    found = replace(source, build="")
    assert wheels._known(found, "2" * 64, None) is None
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(data)
    assert wheels._known(found, "3" * 64, None) is None, "another build"
    assert wheels._known(found, "2" * 64, "other") is None, "another name"
    known = wheels._known(found, "2" * 64, "tool")
    assert known is not None and (known.filename, known.sha256, known.locked) == (name, digest, source)
    assert known.path.read_bytes() == data


def test_description(tmp_path: Path) -> None:
    """Only for a build that makes its version from git; one that the user set needs no history."""
    repo, source = Repo(tmp_path), LockedSource("local", ".", tree="1" * 64)
    repo.commit(setup_py="use_scm_version")
    wheels, spec = wheel_builder(tmp_path), SourceSpec("local", None, ".", where="e.yml:1")
    tree = SourceTree(tmp_path, source, tmp_path)
    described = wheels._with_description(spec, "tool", tree).locked
    assert described == replace(source, describe=f"0.0-1-g{repo.git('rev-parse', 'HEAD')[:10]}")
    assert wheels._record(described, "key") != wheels._record(source, "key")
    old = cache_key(["", "", source.tree, "", "key"])
    assert wheels._record(source, "key").path.name == f"{old}.json", "records of other sources stay valid"
    build = {"tool": {"env": {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TOOL": "1.0"}}}
    recipe = Recipe.model_validate({**wheels.recipe.model_dump(), "pip": {"build": build}})
    wheels.inputs = replace(wheels.inputs, recipe=recipe)
    assert wheels._with_description(spec, "tool", tree) == tree
    (tmp_path / "setup.py").write_text("")
    assert wheel_builder(tmp_path)._with_description(spec, "tool", tree) == tree


def test_build_requirements_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build takes the packages that the lock records, without an index after the first time."""
    asked = list[list[str]]()
    newest = {"setuptools": "81.0", "wheel": "0.46", "cython": "3.1"}

    def resolve(requires: list[str], *_: object, isolated: bool) -> list[LockedPackage]:
        asked.append(list(requires))
        pairs = (text.partition("==") for text in requires)
        return [
            LockedPackage(name, version or newest[name], "pip", "linux-64", f"https://h/{name}.whl", "1" * 64)
            for name, _, version in pairs
        ]

    monkeypatch.setattr(builder, "resolve_requirements", resolve)
    wheels = wheel_builder(tmp_path)

    def taken(requires: list[str], *pins: str) -> dict[str, str]:
        tree = SourceTree(tmp_path, LockedSource("local", ".", requires=pins), tmp_path)
        spec, backend = SourceSpec("local", "demo", "."), Backend("own", ())
        job = WheelJob("demo", "demo", spec, wheels.recipe, tree, backend, requires, WheelBuild())
        found = wheels._build_packages(job, [])
        return {package.name: package.version for package in found}

    assert taken(["setuptools"]) == {"setuptools": "81.0"}
    pins = ("setuptools==80.9", "wheel==0.45")
    for _ in range(2):
        assert taken(["setuptools"], *pins) == {"setuptools": "80.9", "wheel": "0.45"}
    assert asked == [["setuptools"], [*pins]]
    assert taken(["setuptools", "cython"], *pins) == {"setuptools": "81.0", "cython": "3.1"}
    assert taken(["setuptools"], "setuptools==81.0") == {"setuptools": "81.0"} and len(asked) == 3
