"""The image that modules are compiled in: its files, and what is downloaded for it."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.bases.image import BaseImage
from builder.build.bytecode.inputs import BytecodeRequest
from builder.build.bytecode.runtime import make_runtime
from builder.build.fetch.venv import BasePython, locked_base_python
from builder.build.image.libraries import base_libraries
from builder.core.errors import LayerError
from builder.core.model import Fetched, Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import build_layers, make_layer
from builder.formats.layers.entry import Entry
from builder.lock.config.recipe import Recipe
from tests.support import condapackage
from tests.support.condapackage import Member, symlink
from tests.support.elf import elf
from tests.support.packagefiles import files_of
from tests.support.wheels import CONTEXT

RECIPE = Recipe(name="demo", base="docker://example.org/base", environment="environment.yml")


GNU = "usr/lib/x86_64-linux-gnu"
LOADER = "/lib64/ld-linux-x86-64.so.2"


def layer(work: Workspace, links: Mapping[str, str], files: Mapping[str, bytes]) -> Layer:
    entries = [Entry.of(path, data, 0o755) for path, data in files.items()]
    entries += [Entry(path, "symlink", 0o777, target=to) for path, to in links.items()]
    return make_layer(entries, "layer", work)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "cache", tmp_path / "tmp", 2)


@pytest.fixture
def base(settings: Settings) -> BaseImage:
    """A base of three layers whose Python 3.15 needs libzstd, as that of Debian sid does (3.15.2-1)."""
    work = Workspace(settings, Store(settings.cache))
    libraries = {
        f"{GNU}/libc.so.6": elf([LOADER.rpartition("/")[2]]),
        f"{GNU}/ld-linux-x86-64.so.2": elf([]),
        f"{GNU}/libm.so.6": elf(["libc.so.6"]),
        f"{GNU}/libzstd.so.1.5.7": elf(["libc.so.6"]),
        f"{GNU}/libcudart.so.12": elf(["libc.so.6"]),
        f"{GNU}/libssl.so.3": elf(["libcrypto.so.3"]),
        "etc/ld.so.cache": b"cache",
    }
    links = {
        "lib": "usr/lib",
        "lib64": "usr/lib64",
        "usr/lib64/ld-linux-x86-64.so.2": f"/{GNU}/ld-linux-x86-64.so.2",
        f"{GNU}/libzstd.so.1": "libzstd.so.1.5.7",
        "usr/bin/python3": "python3.15",
        "usr/share/doc": "man",
        "usr/share/loop": "loop",
    }
    lib = "usr/lib/python3.15"
    python = {
        "usr/bin/python3.15": elf(["libzstd.so.1", "libm.so.6", "libc.so.6"], loader=LOADER),
        f"{lib}/os.py": b"data",
        f"{lib}/test/x.py": b"data",
        f"{lib}/lib-dynload/math.cpython-315-x86_64-linux-gnu.so": elf(["libm.so.6", "libown.so.1"]),
        f"{lib}/lib-dynload/_ssl.cpython-315-x86_64-linux-gnu.so": elf(["libssl.so.3"]),
        "usr/lib/python3/dist-packages/y.py": b"data",
        "opt/own/lib/libown.so.1": elf(["libdeep.so.2"]),
        "opt/own/lib/libdeep.so.2": elf(["libc.so.6"]),
        "opt/rocm/lib/libbig.so": elf(["libc.so.6"]),
    }
    layers = (
        layer(work, {}, {"etc/os-release": b""}),
        layer(work, links, libraries),
        layer(work, {}, python),
    )
    return BaseImage("docker://example.org/base", f"sha256:{'1' * 64}", {}, layers)


def source(settings: Settings, base: BaseImage, *packages: Fetched) -> BytecodeRequest:
    store = Store(settings.cache)
    made = files_of(packages, settings, CONTEXT)
    built = build_layers(made, RECIPE.layers.options, budget=60).layers
    return BytecodeRequest(made, base, RECIPE, Workspace(settings, store), 90, built)


def base_source(settings: Settings, base: BaseImage, interpreter: str) -> BytecodeRequest:
    """A target with the Python of the base."""
    folder = settings.cache / "packages"
    package = locked_base_python(BasePython(interpreter, "3.15.2"), "linux-64", folder)
    [file] = folder.rglob("*.conda")
    return source(settings, base, Fetched(package, file, file.stat().st_size))


def names(found: Layer) -> set[str]:
    assert found.path is not None
    with tarfile.open(found.path) as tar:
        return {member.name for member in tar if not member.isdir()}


def conda(folder: Path) -> list[Fetched]:
    """A Python, a library that it needs, and a package that it does not need."""
    zlib = [Member("lib/libz.so.1.3", elf(["libc.so.6"])), symlink("lib/libz.so.1", "libz.so.1.3")]
    zlib += [Member("share/zlib.txt"), Member("lib/libssl.so.3", elf([])), Member("lib/libother.so", elf([]))]
    dynload = "lib/python3.11/lib-dynload"
    python = [
        Member("bin/python3.11", elf(["libpython3.11.so.1.0", "libc.so.6"], loader=LOADER), mode=0o755),
        Member("bin/pip"),
        Member("lib/libpython3.11.so.1.0", elf(["libm.so.6"])),
        Member("lib/python3.11/os.py"),
        Member("lib/python3.11/encodings/utf_8.py"),
        Member("lib/python3.11/test/test_os.py"),
        Member("lib/python3.11/asyncio/__init__.py"),
        Member(f"{dynload}/_ssl.cpython-311-x86_64-linux-gnu.so", elf(["libssl.so.3"])),
        Member(f"{dynload}/zlib.cpython-311-x86_64-linux-gnu.so", elf(["libz.so.1"])),
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
    """The Python of the packages with what its files need, over the base's C library, and nothing else."""
    image, program = make_runtime(source(settings, base, *conda(tmp_path)))
    libraries, python = image.layers
    assert program == "/opt/conda/bin/python3.11"
    assert names(python) == {
        "opt/conda/bin/python3.11",
        "opt/conda/lib/libpython3.11.so.1.0",
        "opt/conda/lib/libz.so.1",
        "opt/conda/lib/libz.so.1.3",
        "opt/conda/lib/python3.11/encodings/utf_8.py",
        "opt/conda/lib/python3.11/lib-dynload/zlib.cpython-311-x86_64-linux-gnu.so",
        "opt/conda/lib/python3.11/os.py",
    }
    assert names(libraries) == {
        "etc/ld.so.cache",
        "lib",
        "lib64",
        f"{GNU}/ld-linux-x86-64.so.2",
        f"{GNU}/libc.so.6",
        f"{GNU}/libm.so.6",
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


def test_base_python(settings: Settings, base: BaseImage) -> None:
    """The base's own Python with its standard library and all that both need, from any folder."""
    image, program = make_runtime(base_source(settings, base, "/usr/bin/python3.15"))
    [layer] = image.layers
    assert program == "/usr/bin/python3.15"
    assert names(layer) == {
        "etc/ld.so.cache",
        "lib",
        "lib64",
        "opt/own/lib/libdeep.so.2",
        "opt/own/lib/libown.so.1",
        "usr/bin/python3",
        "usr/bin/python3.15",
        f"{GNU}/ld-linux-x86-64.so.2",
        f"{GNU}/libc.so.6",
        f"{GNU}/libm.so.6",
        f"{GNU}/libzstd.so.1",
        f"{GNU}/libzstd.so.1.5.7",
        "usr/lib/python3.15/lib-dynload/math.cpython-315-x86_64-linux-gnu.so",
        "usr/lib/python3.15/os.py",
        "usr/lib64/ld-linux-x86-64.so.2",
    }
    record = base_libraries(base, Store(settings.cache))
    assert f"{GNU}/libcudart.so.12" in record, "the base is read once for both"


def test_own_folder(settings: Settings, base: BaseImage) -> None:
    """A Python in a folder of its own, behind a link, whose library the base's variable names."""
    root = "opt/python-3.15"
    files = {
        f"{root}/bin/python3.15": elf(["libpython3.15.so.1.0"], loader=LOADER),
        f"{root}/lib/libpython3.15.so.1.0": elf(["libm.so.6"]),
        f"{root}/lib64/python3.15/os.py": b"data",
    }
    above = layer(Workspace(settings, Store(settings.cache)), {"opt/python": "python-3.15"}, files)
    env = {"Env": ["LD_LIBRARY_PATH=/opt/python/lib", "PYTHONPATH=/x"]}
    own = replace(base, layers=(*base.layers, above), config={"config": env})
    image, _ = make_runtime(base_source(settings, own, f"/{root}/bin/python3.15"))
    found = names(image.layers[0])
    assert {*files, "opt/python", f"{GNU}/libm.so.6"} <= found
    assert "usr/lib/python3.15/os.py" not in found
    assert json.loads(image.config)["config"]["Env"] == ["LD_LIBRARY_PATH=/opt/python/lib"]


@pytest.mark.parametrize(("kept", "lacks"), [(1, "libc.so.6"), (0, "C library")])
def test_no_c_library(tmp_path: Path, settings: Settings, base: BaseImage, kept: int, lacks: str) -> None:
    """A base without what the Python needs to start is named before a container starts."""
    short = replace(base, layers=base.layers[:kept])
    with pytest.raises(LayerError, match=f"example.org/base has no .*{re.escape(lacks)}"):
        make_runtime(source(settings, short, *conda(tmp_path)))
