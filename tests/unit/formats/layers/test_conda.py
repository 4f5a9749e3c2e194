"""Conda packages as layer entries: hard links, generated files, and memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.formats.layers.conda import conda_entries, conda_index
from builder.formats.layers.entry import Entry, LinkContext
from tests.support.conda_reader import CONTEXT, EXTENSIONS, read, record
from tests.support.condapackage import (
    PLACEHOLDER,
    Extension,
    Member,
    fetched,
    hardlink,
    pack,
    symlink,
)

EACH_KIND = [
    Member("lib/z", b"12345"),
    symlink("lib/a", "z"),
    Member("share/folder", kind="dir"),
    hardlink("lib/again", "lib/z"),
    Member("etc/p", PLACEHOLDER.encode(), prefix="text"),
]


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_index_matches_entries(tmp_path: Path, extension: Extension) -> None:
    """The index lists the paths of the entries in the same order, with the same kinds."""
    package = fetched(pack(tmp_path, "thing", EACH_KIND, extension=extension))
    index = conda_index(package, CONTEXT)
    found = read(package, tmp_path)
    assert [e.path for e in index.entries] == list(found)
    kinds = {e.path: e.kind for e in index.entries}
    assert kinds == {p: "file" if e.kind == "hardlink" else e.kind for p, (e, _) in found.items()}
    assert found["opt/conda/share/folder"][0] == Entry("opt/conda/share/folder", "dir", 0o755)
    assert found["opt/conda/lib/again"][0].target == "opt/conda/lib/z"
    assert found["opt/conda/etc/p"][1] == b"/opt/conda"
    assert index.unpacked >= 5


def test_hard_link_to_a_path_left_out(tmp_path: Path) -> None:
    """A hard link becomes a file if its first name is left out. The record does not depend on that."""
    members = [Member("a", b"content"), hardlink("b", "a"), hardlink("c", "b")]
    package = fetched(pack(tmp_path, "thing", members))
    found = read(package, tmp_path, leave_out=["opt/conda/a"])
    assert [(p, e.kind, data) for p, (e, data) in list(found.items())[:2]] == [
        ("opt/conda/b", "file", b"content"),
        ("opt/conda/c", "hardlink", b""),
    ]
    assert found["opt/conda/c"][0].target == "opt/conda/b"
    assert record(found) == record(read(package, tmp_path))  # it goes by the package, not by who wins


def test_generated_files_win(tmp_path: Path) -> None:
    """A generated file replaces one with the same path in the package."""
    members = [
        Member("python-scripts/tool", b"old"),
        Member("conda-meta/thing-1.0-0.json", b"old"),
        Member("conda-meta/pinned", b"x"),
    ]
    package = fetched(pack(tmp_path, "thing", members, noarch="python", entry_points=["tool = m:f"]))
    index = conda_index(package, CONTEXT)
    assert [e.path for e in index.entries] == [
        "opt/conda/conda-meta/pinned",
        "opt/conda/bin/tool",
        "opt/conda/conda-meta/thing-1.0-0.json",
    ]
    found = read(package, tmp_path)
    assert list(found) == [e.path for e in index.entries]
    assert found["opt/conda/bin/tool"][1].startswith(b"#!/opt/conda/bin/python3.11\n")


def test_memory(tmp_path: Path) -> None:
    """The memory needed does not grow with the package."""
    block = hashlib.sha256(b"x").digest() * 32768  # 1 MiB
    big = [
        Member("lib/big.so", (PLACEHOLDER.encode() + b"\0" + block) * 60, prefix="binary"),
        Member("lib/plain", block * 60),
    ]
    package = fetched(pack(tmp_path, "thing", big))
    del big
    tracemalloc.start()
    for entry in conda_entries(package, CONTEXT, tmp_path):
        assert entry.kind == "file"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_prefix_longer_than_the_placeholder(tmp_path: Path) -> None:
    """A prefix that does not fit a binary file is an error."""
    package = fetched(
        pack(tmp_path, "thing", [Member("lib/x.so", PLACEHOLDER.encode() + b"\0", prefix="binary")])
    )
    with pytest.raises(
        LayerError, match="thing-1.0-0.conda: lib/x.so: the prefix .* is longer than the 255 bytes"
    ) as e:
        read(package, tmp_path, LinkContext("/" + "x" * 300, "3.11", "lib/python3.11/site-packages"))
    assert "conda.prefix" in e.value.hint
