"""Which libraries an image lacks: wheels over a base of a few files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builder.build.image.libraries import missing_libraries
from builder.core.model import Layer, MissingLibrary
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.wheel import wheel_entries
from tests.support.elf import elf
from tests.support.image_kit import base, layer, member, recipe, settings
from tests.support.packagefiles import files_of
from tests.support.wheels import CONTEXT, fetched, make_wheel

APT = "usr/lib/x86_64-linux-gnu/libapt-pkg.so.6.0"
MODULE = "p/x.cpython-311-x86_64-linux-gnu.so"


@dataclass
class Searched:
    """What is searched: wheels by name, each with its ELF files and what they need, over a base."""

    folder: Path
    wheels: Mapping[str, Mapping[str, Sequence[str]]]
    below: Sequence[str] = (APT, "lib/libc.so.6")
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = settings(self.folder)
        self.store = Store(self.settings.cache)
        self.base = base(layer(self.store, *(member(path, b"x") for path in self.below)))
        paths = [self._wheel(name, files) for name, files in self.wheels.items()]
        self.packages = files_of([fetched(path) for path in paths], self.settings)
        self.layers = [self._layer(path) for path in paths]

    def _wheel(self, name: str, files: Mapping[str, Sequence[str]]) -> Path:
        return make_wheel(self.folder, name, files={path: elf(needed) for path, needed in files.items()})

    def _layer(self, wheel: Path) -> Layer:
        return make_layer(wheel_entries(fetched(wheel), CONTEXT), "t", Workspace(self.settings, self.store))

    def missing(self) -> tuple[MissingLibrary, ...]:
        made = recipe(self.folder, **self.more)
        return missing_libraries(
            made, self.base, self.layers, self.packages, Workspace(self.settings, self.store)
        )

    def names(self, optional: bool = False) -> list[str]:
        return [one.name for one in self.missing() if one.optional == optional]


def test_missing(tmp_path: Path) -> None:
    """Each is there once, with all packages that need it and the Debian package that has it."""
    searched = Searched(tmp_path, {"p": {MODULE: ["libGL.so.1"]}, "q": {"q.so": ["libGL.so.1", "libc.so.6"]}})
    assert searched.missing() == (MissingLibrary("libGL.so.1", ("p", "q"), False, "libgl1"),)


@pytest.mark.parametrize(
    ("release", "package"),
    [
        ("ID=debian\nVERSION_ID=12\n", "libopenmpi3"),
        ("ID=debian\nVERSION_ID=13\n", "libopenmpi40"),
        ("ID=debian\nVERSION_CODENAME=forky\n", "libopenmpi40"),
        ("ID=ubuntu\nVERSION_ID=24.04\n", "libopenmpi3"),
    ],
)
def test_package_of_the_release(tmp_path: Path, release: str, package: str) -> None:
    """The package has the name of the base's release: Debian 13 has another for ``libmpi.so.40``."""
    searched = Searched(tmp_path, {"p": {MODULE: ["libmpi.so.40"]}})
    files = [member(APT, b"x"), member("etc/os-release", release.encode())]
    searched.base = base(layer(searched.store, *files))
    assert [one.os_package for one in searched.missing()] == [package]


def test_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged image is searched once, and its base is read once for all images."""
    searched = Searched(tmp_path, {"p": {MODULE: ["libGL.so.1"]}})
    found = searched.missing()
    monkeypatch.setattr("builder.build.bases.sif.base_sources", None)
    searched.store.path(searched.base.layers[0].descriptor.digest).unlink()
    assert searched.missing() == found


def test_base_is_not_here(tmp_path: Path) -> None:
    """``publish`` can leave the base in its registry."""
    searched = Searched(tmp_path, {"p": {MODULE: ["libGL.so.1"]}})
    searched.store.path(searched.base.layers[0].descriptor.digest).unlink()
    assert searched.missing() == ()


def test_another_wheel_has_it(tmp_path: Path) -> None:
    """Anywhere in the image: torch finds the libraries of NVIDIA's wheels by RPATH."""
    wheels = {"p": {MODULE: ["libcublas.so.12"]}, "nvidia": {"nvidia/cublas/lib/libcublas.so.12": []}}
    assert Searched(tmp_path, wheels).missing() == ()


@pytest.mark.parametrize("path", ["opt/conda/lib/libGL.so.1", "cuda/lib64/stubs/libGL.so.1"])
def test_base_has_it_in_vain(tmp_path: Path, path: str) -> None:
    """The environment hides its prefix in the base; stubs are no libraries."""
    assert Searched(tmp_path, {"p": {MODULE: ["libGL.so.1"]}}, below=[path]).names() == ["libGL.so.1"]


def test_no_apt(tmp_path: Path) -> None:
    """A base without apt gets no names of Debian's packages."""
    searched = Searched(tmp_path, {"p": {MODULE: ["libGL.so.1"]}}, below=["lib64/libc.so.6"])
    assert [one.os_package for one in searched.missing()] == [""]


def test_driver(tmp_path: Path) -> None:
    """The runtime brings the GPU's driver."""
    needed = ["libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libcudart.so.12"]
    assert Searched(tmp_path, {"p": {MODULE: needed}}).names() == ["libcudart.so.12"]


@pytest.mark.parametrize(("site", "names"), [({}, ["libmpi.so.12"]), ({"mpi": {"modules": ["m"]}}, [])])
def test_host_mpi(tmp_path: Path, site: Mapping[str, Any], names: list[str]) -> None:
    searched = Searched(tmp_path, {"p": {MODULE: ["libmpi.so.12"]}}, more={"site": site})
    assert searched.names() == names


def test_reached(tmp_path: Path) -> None:
    """A library of the package that an extension module needs is loaded with it."""
    files = {
        MODULE: ["libone-1a2b3c4d.so"],
        "p.libs/libone-1a2b3c4d.so": ["libtwo.so"],
        "p/libtwo.so": ["libX.so.1"],
    }
    assert Searched(tmp_path, {"p": files}).names() == ["libX.so.1"]


ABIS = ("abi3", "abi3t", "cpython-313t")


@pytest.mark.parametrize(
    "suffix", ["", *(f".{abi}" for abi in ABIS), *(f".{abi}-x86_64-linux-gnu" for abi in ABIS)]
)
def test_extension_modules(tmp_path: Path, suffix: str) -> None:
    """Python imports all of these; of two files, none is the package's only library."""
    files = {f"p/_one{suffix}.so": ["libA.so.1"], f"p/_two{suffix}.so": ["libA.so.1"]}
    assert Searched(tmp_path, {"p": files}).names() == ["libA.so.1"]


def test_extension_module_lib(tmp_path: Path) -> None:
    """A suffix of CPython says what a file is, also if it begins as a library (pandas 2.3)."""
    files = {
        "p/lib.cpython-313-x86_64-linux-gnu.so": ["libA.so.1"],
        "p/libq.so": ["libB.so.1"],
        "p/libr.so": [],
    }
    searched = Searched(tmp_path, {"p": files})
    assert (searched.names(), searched.names(optional=True)) == (["libA.so.1"], ["libB.so.1"])


@pytest.mark.parametrize(
    ("below", "more", "names"),
    [
        ((), {}, ["libmpi.so.12", "libmpi.so.40"]),
        (("usr/lib/libmpi.so.12",), {}, []),
        ((), {"site": {"mpi": {"modules": ["m"]}}}, []),
    ],
    ids=["none", "one", "the host's"],
)
def test_alternatives(
    tmp_path: Path, below: Sequence[str], more: Mapping[str, Any], names: list[str]
) -> None:
    """mpi4py has a module for each MPI, and imports one that works; without any it does not work."""
    end = "cpython-313-x86_64-linux-gnu.so"
    files = {f"mpi4py/MPI.mpich.{end}": ["libmpi.so.12"], f"mpi4py/MPI.openmpi.{end}": ["libmpi.so.40"]}
    assert Searched(tmp_path, {"mpi4py": files}, below, more).names() == names


def test_optional(tmp_path: Path) -> None:
    """Plugins, variants, and modules of which one works."""
    files = {
        "p/plugins/libone.so": ["libA.so.1"],
        "p/libvariant_cuda11.so": ["libB.so.11"],
        "p/libvariant_cuda12.so": ["libB.so.12"],
        "numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so": ["libtbb.so.12"],
        "p/x.py": [],
    }
    searched = Searched(tmp_path, {"p": files})
    assert searched.names() == []
    assert searched.names(optional=True) == ["libA.so.1", "libB.so.11", "libB.so.12", "libtbb.so.12"]


def test_only_library(tmp_path: Path) -> None:
    """lightgbm loads its only library with ctypes; copies of others do not count."""
    files = {"p/lib/lib_p.so": ["libgomp.so.1"], "p.libs/libz-1a2b3c4d.so.1": []}
    assert Searched(tmp_path, {"p": files}).names() == ["libgomp.so.1"]


def test_program(tmp_path: Path) -> None:
    assert Searched(tmp_path, {"p": {"p/bin/tool.so": ["libA.so.1"]}}).names() == ["libA.so.1"]
