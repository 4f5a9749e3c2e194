"""micromamba, and the Python that runs rattler."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from builder.engines import tools
from builder.engines.tools import micromamba, python_closure, write_tool
from builder.errors import ImageError
from builder.oci.layout import write_layout
from builder.store.blobs import Store
from tests.support.condapackage import Member, fetched, pack, symlink
from tests.support.engines import package, request
from tests.support.image_kit import image, layer, member


def test_micromamba_from_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied from the image once, and is on the disk then: nothing checks its content later."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    other = Store(tmp_path / "other")
    made = image(other, layer(other, member("usr/bin/micromamba", b"\x7fELF of an image")))
    write_layout(made, tmp_path / "mamba", "v1", other)
    r = request(tmp_path, installer={"micromamba": "oci:mamba:v1"})
    first = micromamba(r)
    assert first.read_bytes() == b"\x7fELF of an image"
    assert any(f"/.{first.name}" in path for path in synced) and synced[-1] == str(first.parent)
    stamp = first.stat().st_mtime_ns
    assert micromamba(r) == first and first.stat().st_mtime_ns == stamp


def test_python_closure() -> None:
    packages = [
        package("python", dependencies={"openssl": "", "__glibc": ""}),
        package("openssl", dependencies={"libc": ""}),
        package("libc"),
        package("numpy", dependencies={"python": ""}),
    ]
    assert [p.name for p in python_closure(packages)] == ["libc", "openssl", "python"]


def test_tree_stays_inside(tmp_path: Path) -> None:
    """Links of one package do not lead the files of another one, or the clean-up, out of the folder."""
    outside = tmp_path / "outside"
    (outside / "test").mkdir(parents=True)
    (outside / "file").write_text("untouched\n")
    links = [
        symlink("etc", str(outside)),
        symlink("lib/python3.99", str(outside)),
        symlink("share/file", str(outside / "file")),
        symlink("builder-site", str(outside)),
    ]
    files = [Member("etc/new", b"evil"), Member("share/file", b"evil"), Member("lib/python3.99/b", b"evil")]
    archives = [fetched(pack(tmp_path, "a", links)), fetched(pack(tmp_path, "b", files))]
    made = tmp_path / "tool.tar"
    write_tool(archives, tmp_path / "work", made, 315532800)
    assert sorted(p.name for p in outside.iterdir()) == ["file", "test"]
    assert (outside / "file").read_text() == "untouched\n"
    with tarfile.open(made) as tar:
        members = {m.name: m for m in tar}
    assert members["./share/file"].isreg() and members["./builder-site/rattler"].isdir()
    assert all(m.uid == 0 and m.uname == "root" for m in members.values())


def test_large_micromamba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A micromamba over the bound is refused before it is read."""
    monkeypatch.setattr(tools, "MAX_MICROMAMBA", 10)
    other = Store(tmp_path / "other")
    made = image(other, layer(other, member("bin/micromamba", b"x" * 11)))
    write_layout(made, tmp_path / "mamba", "v1", other)
    with pytest.raises(ImageError, match="bin/micromamba has 11 bytes; at most 10 are allowed"):
        micromamba(request(tmp_path, installer={"micromamba": "oci:mamba:v1"}))
