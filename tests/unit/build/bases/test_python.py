"""Which Python is found in the files of a base image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases import contents as module
from builder.build.bases.contents import base_glibc, base_python, find_glibc, find_python
from builder.build.bases.resolve import resolve_base
from builder.build.fetch.venv import BasePython
from builder.core.errors import ConfigError, ImageError
from builder.core.model import Layer, LockedBase
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support.base_files import write_base
from tests.support.image_kit import base, layer, member, recipe, settings
from tests.support.reporters import Warnings
from tests.support.sif_place import Place

DPKG = b"""Package: python3
Version: 3.11.2-1+b1

Package: python3.11-minimal
Status: install ok installed
Architecture: amd64
Version: 3.11.2-6+deb12u6

Package: zlib1g
Version: 1:1.2.13
"""
HEADER = b'/* Values */\n#define PY_MAJOR_VERSION 3\n#define PY_VERSION      "3.12.7+"\n'


def files(*names: str, **texts: bytes) -> list[Any]:
    """Members of a layer: ``NAME -> TARGET`` is a symlink."""
    made = []
    for name in names:
        path, _, target = name.partition(" -> ")
        made.append(member(path, target=target) if target else member(path, b"elf", mode=0o755))
    return [*made, *(member(path, data) for path, data in texts.items())]


DEBIAN = files(
    "bin -> usr/bin",
    "usr/bin/python3 -> python3.11",
    "usr/bin/python3.11",
    **{"var/lib/dpkg/status": DPKG},
)
OWN = files(
    "usr/local/bin/python -> python3",
    "usr/local/bin/python3 -> python3.12",
    "usr/local/bin/python3.12",
    **{"usr/local/include/python3.12/patchlevel.h": HEADER},
)
CONDA = files(
    "opt/conda/bin/python -> python3.10",
    "opt/conda/bin/python3.10",
    "opt/conda/conda-meta/python-3.10.14-h_0.json",
)

FREE = files(
    "usr/local/bin/python3 -> python3.13",
    "usr/local/bin/python3.13",
    "usr/local/bin/python3.13t",
    "usr/local/lib/python3.13t/os.py",
    **{"usr/local/include/python3.13t/patchlevel.h": b'#define PY_VERSION "3.13.5"\n'},
)

NAMED = files("usr/bin/python3 -> python3.14t", "usr/bin/python3.14t")
LOCAL = "usr/local/bin/python3.13"
REMOVED = files("usr/local/bin/.wh.python3.12")


def venv(system: str) -> list[Any]:
    text = f"home = /usr/bin\ninclude-system-site-packages = {system}\n".encode()
    return files(
        "opt/venv/bin/python3 -> python",
        "opt/venv/bin/python -> /etc/alternatives/python",
        "etc/alternatives/python -> ../../bin/python3",
        **{"opt/venv/pyvenv.cfg": text},
    )


SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("layers", "path", "expected"),
    [
        ([DEBIAN], "", BasePython("/usr/bin/python3.11", "3.11.2", True)),
        ([DEBIAN], "/bin", BasePython("/usr/bin/python3.11", "3.11.2", True)),
        ([DEBIAN[:-1]], "", BasePython("/usr/bin/python3.11", "3.11", True)),
        ([DEBIAN, OWN], "", BasePython("/usr/local/bin/python3.12", "3.12.7", True)),
        ([DEBIAN, OWN], "/usr/bin", BasePython("/usr/bin/python3.11", "3.11.2", True)),
        ([CONDA, DEBIAN], "/sbin", BasePython("/opt/conda/bin/python3.10", "3.10.14", True)),
        ([DEBIAN, venv("true")], "/opt/venv/bin", BasePython("/usr/bin/python3.11", "3.11.2", True, SITE)),
        ([DEBIAN, venv("false")], "/opt/venv/bin", BasePython("/usr/bin/python3.11", "3.11.2", False, SITE)),
        ([OWN, REMOVED, DEBIAN], "", BasePython("/usr/bin/python3.11", "3.11.2", True)),
        ([FREE], "", BasePython("/usr/local/bin/python3.13t", "3.13.5", True)),
        ([NAMED], "", BasePython("/usr/bin/python3.14t", "3.14", True)),
        ([FREE, files("usr/local/lib/python3.13/os.py")], "", BasePython(f"/{LOCAL}", "3.13", True)),
        ([files("usr/bin/python3 -> python3", "usr/bin/python2.7")], "", None),
        ([files("usr/bin/python3 -> python3.11", "usr/bin/python3.11/lost")], "", None),
    ],
    ids=[
        "Debian", "linked folder", "no patch level", "PATH", "other PATH", "conda", "open environment",
        "environment", "removed", "free-threaded", "by its name", "both", "loop", "folder",
    ],
)  # fmt: skip
def test_found(tmp_path: Path, layers: list[Any], path: str, expected: BasePython | None) -> None:
    store = Store(tmp_path / "cache")
    made = base(*(layer(store, *members) for members in layers), env=[f"PATH={path}"] if path else [])
    assert find_python(made, store) == expected


def test_size_of_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files that are read of a base are bounded together: a layer may have many of the smallest kind."""
    store = Store(tmp_path / "cache")
    settings = {f"opt/{number}/pyvenv.cfg": b"#" * 40 for number in range(20)}
    made = base(layer(store, *DEBIAN), layer(store, *files(**settings)))
    assert find_python(made, store)
    monkeypatch.setattr(module, "MAX_SIZE", 799)
    with pytest.raises(ImageError, match="files that tell of Python in the base have more than 799"):
        find_python(made, store)


def library(version: str) -> bytes:
    """What glibc's library holds of its version."""
    text = f"GNU C Library (Debian GLIBC {version}-12) stable release version {version}.\nCopyright"
    return b"\x7fELF\0" + text.encode() + b"\0"


MODERN = files(**{"usr/lib/x86_64-linux-gnu/libc.so.6": library("2.41")})
ROCKY = files(**{"usr/lib64/libc.so.6": library("2.34")})
OLD = files(
    "lib/x86_64-linux-gnu/libc.so.6 -> libc-2.31.so",
    **{"lib/x86_64-linux-gnu/libc-2.31.so": library("2.31")},
)
ALPINE = files("lib/ld-musl-x86_64.so.1", **{"lib/libc.so.6": b"musl"})
SYSROOT = files(**{"opt/conda/x86_64-conda-linux-gnu/sysroot/lib64/libc.so.6": library("2.17")})


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([MODERN], "2.41"),
        ([ROCKY], "2.34"),
        ([OLD], "2.31"),
        ([files("etc/x"), ROCKY, MODERN], "2.34"),
        ([ALPINE], ""),
        ([ALPINE, files(**{"usr/glibc-compat/lib/libc.so.6": library("2.35")})], "2.35"),
        ([SYSROOT, MODERN], "2.41"),
        ([], ""),
    ],
    ids=["Debian 13", "Rocky 9", "link", "lowest layer", "musl", "added to musl", "compiler", "empty"],
)
def test_glibc(tmp_path: Path, layers: list[Any], expected: str) -> None:
    store = Store(tmp_path / "cache")
    made = base(*(layer(store, *members) for members in layers))
    assert find_glibc(made, Workspace(settings(tmp_path), store)) == expected


@pytest.mark.parametrize("kind", ["sif", "docker save"])
def test_glibc_of_files(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path)
    made = place.image(layer(place.store, *MODERN))
    reference = "sif:a.sif" if kind == "sif" else write_base(kind, made, tmp_path)
    if kind == "sif":
        place.sif(made)
    work, more = Workspace(place.settings, place.store), recipe(tmp_path, base=reference)
    assert base_glibc(resolve_base(more.base, more, work), more, work) == "2.41"


def test_glibc_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a base in a registry the layers up to that of the library are downloaded, once for all locks."""
    store, fetched = Store(tmp_path / "cache"), list[int]()
    here = [layer(store, *members) for members in (files("etc/x"), MODERN, ROCKY)]

    def fetch(wanted: Layer, *_: object) -> Layer:
        fetched.append([one.diff_id for one in here].index(wanted.diff_id))
        return here[fetched[-1]]

    monkeypatch.setattr("builder.build.bases.sif.fetch_layer", fetch)
    remote = base(*(replace(one, path=None) for one in here))
    monkeypatch.setattr(module, "open_base", lambda *_, **__: remote)
    for _ in range(2):
        work = Workspace(settings(tmp_path), store)
        assert base_glibc(LockedBase("docker://h/x", "sha256:1"), recipe(), work) == "2.41"
    assert fetched == [0, 1]


def test_no_glibc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, reporter = Store(tmp_path / "cache"), Warnings()
    monkeypatch.setattr(module, "open_base", lambda *_, **__: base(layer(store, *ALPINE)))
    work = Workspace(settings(tmp_path), store, reporter)
    assert base_glibc(LockedBase("docker://h/alpine", "sha256:1"), recipe(), work) == ""
    assert any("has no glibc: compiled packages do not run there" in text for text in reporter.messages)


def test_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a base are read once. ``base`` sees none of its packages."""
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    opened = []

    def open_base(*args: Any, **more: Any) -> Any:
        opened.append(args)
        return base(layer(store, *DEBIAN))

    monkeypatch.setattr(module, "open_base", open_base)
    locked = LockedBase("debian:bookworm", "sha256:" + "b" * 64)
    assert base_python(locked, recipe(python="base"), Workspace(given, store)) == BasePython(
        "/usr/bin/python3.11", "3.11.2"
    )
    seeing = base_python(locked, recipe(python="base-with-packages"), Workspace(given, store))
    assert seeing.sees_packages and len(opened) == 1


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, store = settings(tmp_path), Store(tmp_path / "cache")
    source = tmp_path / "recipes" / "tiny.yaml"
    source.parent.mkdir()
    source.write_text("base: debian:bookworm\npython: base\n")
    bases = iter([base(layer(store, *files("usr/bin/sh"))), base(layer(store, *CONDA))])
    monkeypatch.setattr(module, "open_base", lambda *_, **__: next(bases))
    with pytest.raises(ImageError, match=r"tiny.yaml:2: python: the base debian:bookworm has no Python 3"):
        base_python(LockedBase("x", "sha256:1"), recipe(tmp_path, python="base"), Workspace(given, store))
    own = recipe(tmp_path, python="base", conda={"prefix": "/opt/conda"})
    with pytest.raises(ConfigError, match=r"/opt/conda hides /opt/conda/bin/python3.10 of the base") as e:
        base_python(LockedBase("x", "sha256:2"), own, Workspace(given, store))
    assert e.value.hint == "name another folder: conda: {prefix: /opt/conda2}"
