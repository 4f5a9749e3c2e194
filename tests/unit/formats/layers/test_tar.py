"""The tar writer: what it writes is read back with Python's tarfile and GNU tar."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.core.errors import LayerError
from builder.formats.layers.entry import Entry, Inline
from builder.formats.layers.tar import END, check_path, header, padding, with_parents

EPOCH = 315532800


def archive(entries: list[Entry], mtime: int = EPOCH) -> bytes:
    out = bytearray()
    for e in with_parents(entries):
        out += header(e, mtime)
        if isinstance(e.content, Inline):
            out += e.content.data + bytes(padding(e.size))
    return bytes(out + END)


def file(path: str, data: bytes = b"", mode: int = 0o644) -> Entry:
    return Entry(path, "file", mode, len(data), content=Inline(data))


def read(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        return t.getmembers()


part = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=120
).filter(lambda s: s not in (".", ".."))


paths = st.lists(part, min_size=1, max_size=5).map("/".join)


@given(st.dictionaries(paths, st.binary(max_size=1500), max_size=8), st.integers(0, 8**11 - 1))
def test_files_come_back(files: dict[str, bytes], mtime: int) -> None:
    """Files are read back unchanged; every parent directory precedes its children and appears once."""
    folders = {"/".join(p.split("/")[:i]) for p in files for i in range(1, p.count("/") + 1)}
    files = {p: d for p, d in files.items() if p not in folders}
    data = archive([file(p, d) for p, d in files.items()], mtime)
    with tarfile.open(fileobj=io.BytesIO(data)) as t:
        seen: set[str] = set()
        for m in t.getmembers():
            assert (m.uid, m.gid, m.uname, m.gname, m.mtime) == (0, 0, "", "", mtime)
            assert m.name not in seen
            parent = m.name.rpartition("/")[0]
            assert not parent or parent in seen, "a parent comes before its child"
            seen.add(m.name)
            if m.isdir():
                assert m.mode == 0o755
            else:
                stream = t.extractfile(m)
                assert stream is not None and stream.read() == files[m.name]
        assert {m.name for m in t.getmembers() if m.isfile()} == set(files)


@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 156, 200, 255, 256, 257, 400])
@pytest.mark.parametrize("kind", ["file", "dir"])
def test_name_lengths(length: int, kind: str) -> None:
    """Names of every length are read back."""
    name = ("d" * 60 + "/") * (length // 61) + "f" * (length % 61 or 1)
    name = name.rstrip("/")
    entry = file(name) if kind == "file" else Entry(name, "dir", 0o755)
    assert read(header(entry, EPOCH) + END)[0].name == name


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 20 << 30])
def test_large_sizes(size: int) -> None:
    """Sizes beyond ustar's field are read back."""
    head = header(Entry("big", "file", 0o644, size), EPOCH)
    with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as t:
        member = t.next()
    assert member is not None and member.size == size


def test_modes_and_hard_links() -> None:
    """Modes and hard links are read back."""
    entries = [
        file("a/x", b"text", 0o755),
        Entry("a/y", "hardlink", 0o755, target="a/x"),
        Entry("tmp", "dir", 0o1777),
    ]
    folder, x, y, tmp = read(archive(entries))
    assert (folder.name, folder.mode) == ("a", 0o755)
    assert (x.mode, y.islnk(), y.linkname, y.size) == (0o755, True, "a/x", 0)
    assert tmp.mode == 0o1777


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", ".", "..", "./a", "a/./b", "a/..", "../a", "a\0b", "a/\udc80"]
)
def test_unsafe_paths(path: str) -> None:
    """Unsafe paths are refused."""
    with pytest.raises(LayerError, match="unsafe path"):
        check_path(path)
    with pytest.raises(LayerError, match="unsafe path"):
        archive([file("a/b"), file(path)])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([file("a"), file("a")], "/a appears twice"),
        ([file("a"), file("a/b")], "/a appears twice"),
        ([file("a/b"), file("a")], "/a appears twice"),
        ([file("a"), Entry("a", "dir", 0o755)], "/a appears twice"),
        (
            [Entry("y", "hardlink", target="x"), file("x")],
            "hard link /y repeats /x, which does not precede it",
        ),
        ([Entry("y", "symlink", target="")], "impossible target"),
        ([Entry("y", "symlink", target="a\0")], "impossible target"),
    ],
)
def test_invalid_layers(entries: list[Entry], message: str) -> None:
    """Duplicates, links to nothing and impossible targets are refused."""
    with pytest.raises(LayerError, match=message):
        archive(entries)
