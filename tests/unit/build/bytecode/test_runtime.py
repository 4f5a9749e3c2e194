"""The image that modules are compiled in: its files, and what is downloaded for it."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.bases.image import BaseImage
from builder.build.bytecode.inputs import BytecodeRequest
from builder.build.bytecode.runtime import make_runtime
from builder.build.fetch.venv import BasePython, locked_base_python
from builder.build.image.libraries import base_libraries
from builder.core.model import Fetched, Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from builder.lock.config.recipe import Recipe
from tests.support import condapackage
from tests.support.condapackage import Member, symlink
from tests.support.packagefiles import files_of
from tests.support.wheels import CONTEXT

RECIPE = Recipe(name="demo", base="docker://example.org/base", environment="environment.yml")


def layer(store: Store, settings: Settings, *files: str, **links: str) -> Layer:
    entries = [Entry(path, "file", 0o644, 4, content=Inline(b"data")) for path in files]
    entries += [Entry(path.replace("_", "/"), "symlink", 0o777, target=to) for path, to in links.items()]
    return make_layer(entries, "layer", Workspace(settings, store))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "cache", tmp_path / "tmp", 2)


@pytest.fixture
def base(settings: Settings) -> BaseImage:
    store = Store(settings.cache)
    gnu = "usr/lib/x86_64-linux-gnu"
    layers = (
        layer(store, settings, "etc/os-release"),
        layer(
            store,
            settings,
            f"{gnu}/libc.so.6",
            f"{gnu}/libm.so.6",
            f"{gnu}/libcudart.so.12",
            "usr/lib64/ld-linux-x86-64.so.2",
            "usr/bin/python3.11",
            "usr/lib/python3.11/os.py",
            "usr/lib/python3.11/test/x.py",
            "usr/lib/python3/dist-packages/y.py",
            lib="usr/lib",
            lib64="usr/lib64",
            usr_bin_python3="python3.11",
        ),
        layer(store, settings, "usr/lib/x86_64-linux-gnu/libm.so.7", "opt/rocm/lib/libbig.so"),
    )
    return BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, layers)


def source(settings: Settings, base: BaseImage, *packages: Fetched) -> BytecodeRequest:
    store = Store(settings.cache)
    made = files_of(packages, settings, CONTEXT)
    return BytecodeRequest(made, base, RECIPE, Workspace(settings, store), 90, ())


def names(found: Layer) -> set[str]:
    assert found.path is not None
    with tarfile.open(found.path) as tar:
        return {member.name for member in tar if not member.isdir()}


def conda(folder: Path) -> list[Fetched]:
    """A Python, a library that it needs, and a package that it does not need."""
    zlib = [Member("lib/libz.so.1"), symlink("lib/libz.so", "libz.so.1"), Member("share/zlib.txt")]
    zlib.append(Member("lib/libssl.so.3"))  # only its module of the standard library needs it
    python = [
        Member("bin/python3.11", b"program"),
        Member("bin/pip"),
        Member("lib/libpython3.11.so.1.0"),
        Member("lib/python3.11/os.py"),
        Member("lib/python3.11/encodings/utf_8.py"),
        Member("lib/python3.11/test/test_os.py"),
        Member("lib/python3.11/asyncio/__init__.py"),
        Member("lib/python3.11/site-packages/README.txt"),
        Member("include/python3.11/Python.h"),
    ]
    made = [
        condapackage.pack(folder, "zlib", zlib),
        condapackage.pack(folder, "python", python, "3.11.9", depends=["zlib >=1"]),
        condapackage.pack(folder, "blas", [Member("lib/libblas.so")]),
    ]
    found = [condapackage.fetched(path) for path in made]
    needs = replace(found[1].package, dependencies={"zlib": ">=1", "__glibc": ""})
    return [found[0], replace(found[1], package=needs), found[2]]


def test_conda_python(tmp_path: Path, settings: Settings, base: BaseImage) -> None:
    """The Python of the packages with its libraries, over the base's C library, and nothing else."""
    image, program = make_runtime(source(settings, base, *conda(tmp_path)))
    libraries, python = image.layers
    assert program == "/opt/conda/bin/python3.11"
    assert names(python) == {
        "opt/conda/bin/python3.11",
        "opt/conda/lib/libpython3.11.so.1.0",
        "opt/conda/lib/libz.so",
        "opt/conda/lib/libz.so.1",
        "opt/conda/lib/python3.11/encodings/utf_8.py",
        "opt/conda/lib/python3.11/os.py",
    }
    assert names(libraries) == {
        "lib",
        "lib64",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/lib/x86_64-linux-gnu/libm.so.6",
        "usr/lib64/ld-linux-x86-64.so.2",
    }


def test_downloads(
    tmp_path: Path, settings: Settings, base: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a base in a registry, only the layers up to that of the C library are downloaded, and once."""
    downloaded = []
    remote = [replace(layer, path=None) for layer in base.layers]

    def fetch(layer: Layer, *args: object) -> Layer:
        if layer.path is not None:
            return layer
        downloaded.append(remote.index(layer))
        return base.layers[remote.index(layer)]

    monkeypatch.setattr("builder.build.bases.sif.fetch_layer", fetch)
    here = source(settings, replace(base, layers=tuple(remote)), *conda(tmp_path))
    first = make_runtime(here)
    assert downloaded == [0, 1]
    assert make_runtime(here) == first and downloaded == [0, 1]


def test_base_is_read_once(
    tmp_path: Path, settings: Settings, base: BaseImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of a base's libraries, which a build looks up later, come from the same pass."""
    below = replace(base, layers=base.layers[:2])
    expected = base_libraries(below, Store(tmp_path / "other"))
    make_runtime(source(settings, below, *conda(tmp_path)))
    monkeypatch.setattr("builder.build.bases.sif.base_sources", None)  # to read it is an error now
    assert base_libraries(below, Store(settings.cache)) == expected
    assert "usr/lib/x86_64-linux-gnu/libcudart.so.12" in expected


def test_base_python(tmp_path: Path, settings: Settings, base: BaseImage) -> None:
    """The base's own Python, with its standard library."""
    python = BasePython("/usr/bin/python3.11", "3.11.2")
    package = locked_base_python(python, "linux-64", tmp_path / "packages")
    [file] = (tmp_path / "packages").rglob("*.conda")
    fetched = Fetched(package, file, file.stat().st_size)
    image, program = make_runtime(source(settings, base, fetched))
    [layer] = image.layers
    assert program == "/usr/bin/python3.11"
    found = names(layer)
    assert {"usr/bin/python3.11", "usr/bin/python3", "usr/lib/python3.11/os.py", "lib64"} <= found
    assert "usr/lib/x86_64-linux-gnu/libm.so.7" in found
    assert not [name for name in found if "test" in name or "dist-packages" in name or "cuda" in name]
