"""The Debian packages that are found in the files of a base image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.bases import contents as module
from builder.build.bases.contents import BaseSystem, DebianPackage, base_system, find_system
from builder.core.errors import ImageError
from builder.core.model import LockedBase
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.trees.sources import layer_source
from tests.support.image_kit import base, layer, member, recipe, settings

STATUS = b"""Package: zlib1g
Status: install ok installed
Architecture: amd64
Source: zlib
Version: 1:1.2.13
Description: a library
 Version: 9 is not its version

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: bash
Status: install ok half-configured
Architecture: amd64
Version: 5.2-1+b1
Source: bash (5.2-1)
"""
ZLIB = DebianPackage("zlib1g", "1:1.2.13", "amd64", "zlib")
BASH = DebianPackage("bash", "5.2-1+b1", "amd64", "bash (5.2-1)")
SYSTEM = [
    member("usr/lib/os-release", b'NAME="Debian"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'),
    member("etc/os-release", target="../usr/lib/os-release"),
]
LISTED = [*SYSTEM, member("var/lib/dpkg/status", STATUS)]
MORE = [member("var/lib/dpkg/status", b"Package: one\nVersion: 1\nArchitecture: all\n")]
ONE = DebianPackage("one", "1", "all", "")
REMOVED = [member("var/lib/dpkg/.wh.status", b"")]
DISTROLESS = [
    member("var/lib/dpkg/status.d/zlib1g", STATUS.split(b"\n\n")[0]),
    member("var/lib/dpkg/status.d/zlib1g.md5sums", b"Package: not\nVersion: 1\n"),
]
ROCKY = [member("etc/os-release", b'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n')]
MINT = [member("etc/os-release", b"ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_ID=22\n")]

#: The name is in each package's purl.
LONG = [member("etc/os-release", b"ID=%b\nID_LIKE=debian\n" % (b"x" * 100_000))]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([LISTED], BaseSystem("debian", "12", (BASH, ZLIB))),
        ([LISTED, MORE], BaseSystem("debian", "12", (ONE,))),
        ([LISTED, MORE, REMOVED], BaseSystem("debian", "12", ())),
        ([SYSTEM, DISTROLESS, MORE[:0]], BaseSystem("debian", "12", (ZLIB,))),
        ([ROCKY, MORE], BaseSystem("rocky", "9.4", ())),
        ([MINT, MORE], BaseSystem("linuxmint", "22", (ONE,))),
        ([[member("etc/os-release", b"ID=debian\nVERSION_CODENAME=sid\n")]], BaseSystem("debian", "sid", ())),
        ([MORE], BaseSystem("debian", "", (ONE,))),
        ([LONG, MORE], BaseSystem("x" * 200, "", (ONE,))),
        ([[member("bin/tool", b"")]], BaseSystem("", "", ())),
        ([], BaseSystem("", "", ())),
    ],
    ids=[
        "one layer", "topmost list", "removed", "distroless", "not Debian", "derived", "no number",
        "no release", "long", "scratch", "empty",
    ],
)  # fmt: skip
def test_found(tmp_path: Path, layers: list[Any], expected: BaseSystem) -> None:
    store = Store(tmp_path / "cache")
    made = base(*(layer(store, *members) for members in layers))
    assert find_system(made, Workspace(settings(tmp_path), store)) == expected


def test_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base is read once, and a layer below the list is not even looked for."""
    store = Store(tmp_path / "cache")
    layers = [layer(store, *members) for members in (SYSTEM, [member("a", b"")], LISTED)]
    layers[1] = replace(layers[1], path=tmp_path / "missing")
    bases = iter([base(*layers)])
    monkeypatch.setattr(module, "open_base", lambda *_, **__: next(bases))
    work, locked = Workspace(settings(tmp_path), store), LockedBase("x", "sha256:" + "b" * 64)
    found = [base_system(locked, recipe(), work) for _ in range(2)]
    assert found == [BaseSystem("debian", "12", (BASH, ZLIB))] * 2


def test_one_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base of one layer is inflated once."""
    store = Store(tmp_path / "cache")
    read = []

    def source(*args: Any) -> Any:
        read.append(args)
        return layer_source(*args)

    monkeypatch.setattr("builder.build.bases.sif.layer_source", source)
    found = find_system(base(layer(store, *LISTED)), Workspace(settings(tmp_path), store))
    assert found.packages == (BASH, ZLIB) and len(read) == 1


def test_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SIZE", 100)
    store = Store(tmp_path / "cache")
    with pytest.raises(ImageError, match="lists of dpkg in the base have"):
        find_system(base(layer(store, *LISTED)), Workspace(settings(tmp_path), store))
