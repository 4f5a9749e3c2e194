"""Conda packages as layer entries: what is refused, what is noticed, and that nothing depends on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import LayerError, SpaceError
from builder.layers import conda_archive
from builder.layers.conda import CondaReader, history_entry, link_order, python_context
from builder.layers.conda_environment import recorded_url
from builder.layers.conda_prefix import replaced
from builder.layers.entry import Entry, LinkContext
from builder.model import Fetched, LockedPackage
from tests.support.channel import PLACEHOLDER
from tests.support.condapackage import (
    Extension,
    Member,
    data_of,
    fetched,
    hardlink,
    pack,
    symlink,
    tar_of,
    write_conda,
)

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")
EXTENSIONS: tuple[Extension, ...] = (".conda", ".tar.bz2")


def read(
    package: Fetched, tmp_path: Path, context: LinkContext = CONTEXT, leave_out: Sequence[str] = ()
) -> dict[str, tuple[Entry, bytes]]:
    """All entries with their content, by path."""
    entries = CondaReader(tmp_path / "spool").entries(package, context, frozenset(leave_out))
    return {e.path: (e, data_of(e) if e.kind == "file" else b"") for e in entries}


def record(found: dict[str, tuple[Entry, bytes]]) -> dict[str, Any]:
    (path,) = [p for p in found if "/conda-meta/" in p]
    return json.loads(found[path][1])


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("old", [False, True])
def test_index_and_entries_say_the_same(tmp_path: Path, extension: Extension, old: bool) -> None:
    members = [
        Member("lib/z", b"12345"),
        symlink("lib/a", "z"),
        Member("share/folder", kind="dir"),
        hardlink("lib/again", "lib/z"),
        Member("etc/p", PLACEHOLDER.encode(), prefix="text"),
    ]
    package = fetched(pack(tmp_path, "thing", members, extension=extension, old=old))
    index = CondaReader(tmp_path / "spool").index(package, CONTEXT)
    found = read(package, tmp_path)
    assert [e.path for e in index.entries] == list(found)
    kinds = {e.path: e.kind for e in index.entries}
    assert kinds == {p: "file" if e.kind == "hardlink" else e.kind for p, (e, _) in found.items()}
    assert found["opt/conda/share/folder"][0] == Entry("opt/conda/share/folder", "dir", 0o755)
    assert found["opt/conda/lib/again"][0].target == "opt/conda/lib/z"
    assert found["opt/conda/etc/p"][1] == b"/opt/conda"
    assert index.unpacked >= 5


def test_the_index_of_a_conda_file_does_not_read_its_content(tmp_path: Path) -> None:
    path = pack(tmp_path, "thing", [Member("a", b"x" * 5000)])
    whole = path.read_bytes()
    at = whole.index(b"pkg-thing-1.0-0.tar.zst") + len(b"pkg-thing-1.0-0.tar.zst") + 10
    path.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
    package = fetched(path)
    assert [e.path for e in CondaReader(tmp_path).index(package, CONTEXT).entries][0] == "opt/conda/a"
    with pytest.raises(LayerError, match="thing-1.0-0.conda: cannot be read"):
        read(package, tmp_path)


def test_a_hard_link_whose_first_name_is_left_out_is_a_file(tmp_path: Path) -> None:
    members = [Member("a", b"content"), hardlink("b", "a"), hardlink("c", "b")]
    package = fetched(pack(tmp_path, "thing", members))
    found = read(package, tmp_path, leave_out=["opt/conda/a"])
    assert [(p, e.kind, data) for p, (e, data) in list(found.items())[:2]] == [
        ("opt/conda/b", "file", b"content"),
        ("opt/conda/c", "hardlink", b""),
    ]
    assert found["opt/conda/c"][0].target == "opt/conda/b"
    assert record(found) == record(read(package, tmp_path))  # it goes by the package, not by who wins


def test_a_hard_link_to_a_member_that_is_not_installed_is_a_file(tmp_path: Path) -> None:
    members = [Member("hidden", b"content", listed=False), hardlink("b", "./hidden")]
    package = fetched(
        pack(
            tmp_path,
            "thing",
            members,
            info={"paths.json": b'{"paths": [{"_path": "b", "path_type": "hardlink"}]}'},
        )
    )
    entry, data = read(package, tmp_path)["opt/conda/b"]
    assert (entry.kind, data) == ("file", b"content")


# bad input ------------------------------------------------------------------------------------------------------------

UNSAFE = ["/etc/passwd", "../up", "a/../../up", "a//b", "./x/.", "nul\0byte", ""]


@pytest.mark.parametrize("path", UNSAFE)
def test_unsafe_paths_are_refused(tmp_path: Path, path: str) -> None:
    listed = json.dumps({"paths": [{"_path": path, "path_type": "hardlink"}], "paths_version": 1}).encode()
    package = fetched(pack(tmp_path, "thing", info={"paths.json": listed}))
    for call in (lambda: CondaReader(tmp_path).index(package, CONTEXT), lambda: read(package, tmp_path)):
        with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda: unsafe path") as e:
            call()
        assert "fetch it again" in e.value.hint


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (Member("/etc/passwd", b"x", listed=False), "unsafe member '/etc/passwd'"),
        (Member("../up", b"x", listed=False), "unsafe member '../up'"),
        (
            Member("dev/null", kind="device", listed=False),
            "member 'dev/null' is neither a file, a link nor a folder",
        ),
        (Member("lib/dev", kind="device"), "member 'lib/dev' is neither"),
        (
            hardlink("lib/h", "/etc/shadow"),
            "member 'lib/h' is a hard link to '/etc/shadow', which is no file of the package",
        ),
        (
            hardlink("lib/h", "lib/h"),
            "member 'lib/h' is a hard link to 'lib/h', which is no file of the package",
        ),
        (symlink("lib/abs", "/etc/passwd"), "'lib/abs' is a link that leaves the environment: '/etc/passwd'"),
        (symlink("lib/abs", "/opt/condaX"), "'lib/abs' is a link that leaves the environment"),
        (symlink("lib/up", "../../x"), "'lib/up' is a link that leaves the environment: '../../x'"),
        (symlink("lib/up", "a/b/../../../../conda/x"), "leaves the environment"),
        (symlink("up", ".."), "'up' is a link that leaves the environment"),
        (symlink("lib/nul", "x\udcff"), "'lib/nul' is a link to"),
    ],
)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_unsafe_members_are_refused(
    tmp_path: Path, member: Member, message: str, extension: Extension
) -> None:
    package = fetched(pack(tmp_path, "thing", [member], extension=extension))
    with pytest.raises(LayerError, match="thing-1.0-0") as e:
        read(package, tmp_path)
    assert message in e.value.message
    assert list((tmp_path / "spool").iterdir()) == []


def test_links_that_leave_by_way_of_other_links_are_refused(tmp_path: Path) -> None:
    members = [
        symlink("p/q/r/b", "../../../top"),
        symlink("p/q/r/a", "b/../../etc"),
    ]  # read as text, a would stay inside
    package = fetched(pack(tmp_path, "thing", members))
    with pytest.raises(LayerError, match="'p/q/r/a' is a link that leaves the environment"):
        read(package, tmp_path)


@pytest.mark.parametrize(
    "target", ["libz.so.1", "../bin/tool", "/opt/conda/bin/tool", "./a/../b", "loop", "../lib/../share/x"]
)
def test_links_that_stay_inside_are_taken(tmp_path: Path, target: str) -> None:
    package = fetched(pack(tmp_path, "thing", [symlink("lib/link", target), symlink("lib/loop", "loop")]))
    assert read(package, tmp_path)["opt/conda/lib/link"][0] == Entry(
        "opt/conda/lib/link", "symlink", 0o777, target=target
    )


def test_files_below_a_link_or_a_file_are_refused(tmp_path: Path) -> None:
    package = fetched(pack(tmp_path, "thing", [symlink("lib64", "lib"), Member("lib64/x", b"")]))
    with pytest.raises(LayerError, match="'lib64' is a symlink and has files below it"):
        CondaReader(tmp_path).index(package, CONTEXT)


@pytest.mark.parametrize(
    "point",
    [
        "../up = m:f",
        "a/b = m:f",
        "x = m",
        "m:f",
        "x = m:f(); import os",
        "x = os; evil:f",
        "x = m:1f",
        ".hidden = m:f",
        "= m:f",
        "x = m.:f",
    ],
)
def test_unsafe_entry_points_are_refused(tmp_path: Path, point: str) -> None:
    package = fetched(pack(tmp_path, "thing", noarch="python", entry_points=[point]))
    with pytest.raises(
        LayerError, match=r"thing-1\.0-0\.conda: entry point .* is not COMMAND = MODULE:FUNCTION"
    ):
        CondaReader(tmp_path).index(package, CONTEXT)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 0.95])
def test_truncated_archives_are_named(tmp_path: Path, extension: Extension, keep: float) -> None:
    path = pack(
        tmp_path,
        "thing",
        [Member(f"share/{i}", hashlib.sha256(b"%d" % i).digest() * 500) for i in range(20)],
        extension=extension,
    )
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(LayerError, match=f"thing-1.0-0{extension}") as e:
        read(fetched(path), tmp_path)
    assert "fetch it again" in str(e.value)
    assert not (tmp_path / "spool").exists() or list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"index.json": b"not json"}, "cannot be read"),
        ({"index.json": b"[]"}, "no info/index.json"),
        (
            {"index.json": b'{"name": "other", "version": "1.0", "build": "0"}'},
            "says it is 'other', the lock says 'thing'",
        ),
        (
            {"index.json": b'{"name": "thing", "version": "../../1", "build": "0"}'},
            "unsafe name, version or build",
        ),
        ({"index.json": b'{"name": "thing", "version": "1", "build": "0", "noarch": 7}'}, "noarch is 7"),
        ({"paths.json": b"[1]"}, "cannot be read"),
        ({"paths.json": b'{"paths": [{"path_type": "hardlink"}]}'}, "cannot be read"),
        ({"paths.json": b'{"paths": [{"_path": "a", "path_type": "device"}]}'}, "cannot be read"),
        (
            {"paths.json": b'{"paths": [{"_path": "gone", "path_type": "hardlink"}]}'},
            "'gone' is listed in its info/ but not in the archive",
        ),
    ],
)
def test_damaged_metadata_is_named(tmp_path: Path, info: dict[str, bytes], message: str) -> None:
    with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda") as e:
        read(fetched(pack(tmp_path, "thing", info=info)), tmp_path)
    assert message in e.value.message


def test_archives_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "linux-64" / "thing-1.0-0.conda"
    path.parent.mkdir()
    write_conda(path, tar_of([]), tar_of([]))
    with pytest.raises(LayerError, match="no info/index.json"):
        read(fetched(path), tmp_path)
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(LayerError, match="thing-1.0-0.conda: cannot be read"):
        read(fetched(path), tmp_path)
    with pytest.raises(LayerError, match="'thing-1.0.whl' is no conda package"):
        read(fetched(path, url="https://conda.example/linux-64/thing-1.0.whl"), tmp_path)
    path.unlink()
    with pytest.raises(LayerError, match="thing-1.0-0.conda: cannot be read: .*No such file"):
        read(
            Fetched(
                LockedPackage(
                    "thing", "1.0", "conda", "linux-64", f"https://x/linux-64/{path.name}", "0" * 64
                ),
                path,
                1,
            ),
            tmp_path,
        )


def test_a_full_disk_is_named_as_such(tmp_path: Path) -> None:
    package = fetched(pack(tmp_path, "thing", [Member("a", b"x" * 3_000_000)]))
    full = Path("/dev/full")
    with pytest.raises(SpaceError, match="no space left|cannot write"):
        read_into = CondaReader(tmp_path)
        original = conda_archive.tempfile.NamedTemporaryFile
        conda_archive.tempfile.NamedTemporaryFile = lambda **_: full.open("wb", buffering=0)  # type: ignore[assignment,misc]
        try:
            list(read_into.entries(package, CONTEXT))
        finally:
            conda_archive.tempfile.NamedTemporaryFile = original  # type: ignore[misc]


def test_a_prefix_longer_than_the_placeholder(tmp_path: Path) -> None:
    package = fetched(
        pack(tmp_path, "thing", [Member("lib/x.so", PLACEHOLDER.encode() + b"\0", prefix="binary")])
    )
    with pytest.raises(
        LayerError, match="thing-1.0-0.conda: lib/x.so: the prefix .* is longer than the 255 bytes"
    ) as e:
        read(package, tmp_path, LinkContext("/" + "x" * 300, "3.11", "lib/python3.11/site-packages"))
    assert "conda.prefix" in e.value.hint


def test_noarch_python_without_a_python(tmp_path: Path) -> None:
    package = fetched(pack(tmp_path, "thing", noarch="python"))
    with pytest.raises(LayerError, match="noarch python, and the environment has no python"):
        CondaReader(tmp_path).index(package, LinkContext("/opt/conda", "", ""))


# what is recognised ---------------------------------------------------------------------------------------------------


def test_link_scripts_and_menus_are_recognised(tmp_path: Path) -> None:
    members = [Member(f"bin/.thing-{a}.sh", b"") for a in ("post-link", "pre-link", "pre-unlink")] + [
        Member("bin/.other-post-link.sh", b""),
        Member("Menu/thing.json", b"{}"),
        Member("Menu/thing.ico", b""),
    ]
    index = CondaReader(tmp_path).index(fetched(pack(tmp_path, "thing", members)), CONTEXT)
    assert index.post_link == ("opt/conda/bin/.thing-post-link.sh", "opt/conda/bin/.thing-pre-link.sh")
    assert index.notes == ("the menu entries of Menu/thing.json are not installed: an image has no desktop",)


def test_what_linking_makes_takes_the_place_of_what_the_package_brings(tmp_path: Path) -> None:
    members = [
        Member("python-scripts/tool", b"old"),
        Member("conda-meta/thing-1.0-0.json", b"old"),
        Member("conda-meta/pinned", b"x"),
    ]
    package = fetched(pack(tmp_path, "thing", members, noarch="python", entry_points=["tool = m:f"]))
    index = CondaReader(tmp_path).index(package, CONTEXT)
    assert [e.path for e in index.entries] == [
        "opt/conda/conda-meta/pinned",
        "opt/conda/bin/tool",
        "opt/conda/conda-meta/thing-1.0-0.json",
    ]
    found = read(package, tmp_path)
    assert list(found) == [e.path for e in index.entries]
    assert found["opt/conda/bin/tool"][1].startswith(b"#!/opt/conda/bin/python3.11\n")


def test_a_record_holds_no_secret_and_nothing_of_this_machine(tmp_path: Path) -> None:
    path = pack(
        tmp_path, "thing", [Member("a", b"x")], index={"files": ["evil"], "extracted_package_dir": "/home/me"}
    )
    package = fetched(path, url=f"https://me:secret@conda.example/t/to-ken/chan/linux-64/{path.name}")
    text = json.dumps(record(read(package, tmp_path)))
    for word in ("secret", "to-ken", str(tmp_path), "/home/me", "evil"):
        assert word not in text
    assert "https://conda.example/chan/linux-64/thing-1.0-0.conda" in text


def test_the_same_entries_whatever_the_folder(tmp_path: Path) -> None:
    members = [Member("a", PLACEHOLDER.encode() * 5000, prefix="text"), Member("b", b"x" * 10_000)]
    package = fetched(pack(tmp_path, "thing", members))
    one, two = (read(package, tmp_path / name) for name in ("one", "two"))
    assert {p: d for p, (_, d) in one.items()} == {p: d for p, (_, d) in two.items()}
    assert [p for p in one] == [p for p in two]


def test_memory_does_not_grow_with_the_package(tmp_path: Path) -> None:
    block = hashlib.sha256(b"x").digest() * 32768  # 1 MiB
    big = [
        Member("lib/big.so", (PLACEHOLDER.encode() + b"\0" + block) * 60, prefix="binary"),
        Member("lib/plain", block * 60),
    ]
    package = fetched(pack(tmp_path, "thing", big))
    del big
    tracemalloc.start()
    for entry in CondaReader(tmp_path / "spool").entries(package, CONTEXT):
        assert entry.kind == "file"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


# prefixes -------------------------------------------------------------------------------------------------------------

_words = st.sampled_from(
    [b"/old/prefix", b"/old/pre", b"fix", b":", b"\0", b"\n", b"x", b"/", b"#!/old/prefix/bin/python"]
)


@given(st.lists(_words, max_size=40), st.integers(1, 30), st.booleans())
def test_replacing_does_not_depend_on_how_content_is_cut(words: list[bytes], size: int, binary: bool) -> None:
    data = b"x" + b"".join(words)
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    whole = b"".join(replaced([data], "/old/prefix", "/new", binary=binary))
    assert b"".join(replaced(chunks, "/old/prefix", "/new", binary=binary)) == whole
    assert b"/old/prefix" not in whole
    if binary:
        assert len(whole) == len(data)
        assert [s for s in whole.split(b"\0") if s] == [
            s for s in data.replace(b"/old/prefix", b"/new").split(b"\0") if s
        ]
    else:
        assert whole == data.replace(b"/old/prefix", b"/new")


@pytest.mark.parametrize(
    ("line", "prefix", "expected"),
    [
        ("#!/old/bin/perl -w", "/opt/conda", "#!/opt/conda/bin/perl -w"),
        ("#!/old/bin/perl -w", "/" + "p" * 130, "#!/usr/bin/env perl -w"),
        ("#!  /old/bin/perl", "/with blank", "#!/usr/bin/env perl"),
        (
            "#!/old/bin/python3 -E",
            "/with blank",
            "#!/bin/sh\n'''exec' \"/with blank/bin/python3\" -E \"$0\" \"$@\" #'''",
        ),
        ("#!/usr/bin/env perl", "/with blank", "#!/usr/bin/env perl"),
        ("#!" + "/long" * 30 + "/tool", "/opt/conda", "#!/usr/bin/env tool"),
        ("#!" + "x" * 140, "/opt/conda", "#!" + "x" * 140),
    ],
)
@pytest.mark.parametrize("end", ["", "\nrest of /old it\n"])
def test_shebangs(line: str, prefix: str, expected: str, end: str) -> None:
    out = b"".join(replaced([(line + end).encode()], "/old", prefix, binary=False)).decode()
    assert out == expected + end.replace("/old", prefix)


# environments ---------------------------------------------------------------------------------------------------------


def locked(name: str, *needs: str, subdir: str = "linux-64") -> LockedPackage:
    url = f"https://conda.anaconda.org/conda-forge/{subdir}/{name}-1.0-0.conda"
    return LockedPackage(
        name, "1.0", "conda", "linux-64", url, "0" * 64, dependencies=dict.fromkeys(needs, "")
    )


@given(st.permutations(range(6)), st.data())
def test_link_order_puts_dependencies_first_in_any_order_given(order: list[int], data: st.DataObject) -> None:
    needs = {i: data.draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(6)}
    packages = {i: locked(f"p{i}", *(f"p{n}" for n in needs[i]), "__glibc") for i in range(6)}
    out = link_order([packages[i] for i in order])
    assert out == link_order(list(packages.values()))
    place = {p.name: i for i, p in enumerate(out)}
    assert len(place) == 6
    assert all(place[f"p{n}"] < place[f"p{i}"] for i in needs for n in needs[i])


def test_cycles_are_cut_with_noarch_last() -> None:
    pip, python = locked("pip", "python", "setuptools", subdir="noarch"), locked("python", "pip", "libz")
    out = link_order([pip, python, locked("libz"), locked("setuptools", "python", subdir="noarch")])
    names = [p.name for p in out]
    assert names.index("libz") < names.index("python") < names.index("setuptools") < names.index("pip")
    a, b = locked("a", "b"), locked("b", "a")
    assert link_order([a, b]) == link_order([b, a])


def test_a_long_chain_of_dependencies() -> None:
    chain = [locked(f"p{i:05}", f"p{i - 1:05}") for i in range(5000)]
    assert link_order(chain) == chain


def test_a_name_that_stands_twice() -> None:
    with pytest.raises(LayerError, match="the lock has a twice"):
        link_order([locked("a"), locked("a")])


@pytest.mark.parametrize(
    ("version", "build", "index", "expected"),
    [
        ("3.11.4", "h_0_cpython", {}, ("3.11", "lib/python3.11/site-packages")),
        ("3.13.1", "h_0_cp313t", {}, ("3.13", "lib/python3.13t/site-packages")),
        (
            "3.13.1",
            "h_0_cp313",
            {"python_site_packages_path": "lib/py/site-packages"},
            ("3.13", "lib/py/site-packages"),
        ),
    ],
)
def test_python_context(
    tmp_path: Path, version: str, build: str, index: dict[str, Any], expected: tuple[str, str]
) -> None:
    python = fetched(pack(tmp_path, "python", version=version, build=build, index=index))
    context = python_context([python.package], [python], "/opt/conda", "linux-64", frozenset({"python"}))
    assert (context.python, context.site_packages) == expected
    assert context.interpreter == f"/opt/conda/bin/python{expected[0]}"


def test_python_context_without_or_with_a_strange_python(tmp_path: Path) -> None:
    assert python_context([], [], "/opt/conda", "linux-64", frozenset()).python == ""
    python = fetched(pack(tmp_path, "python", index={"python_site_packages_path": "../../etc"}))
    with pytest.raises(LayerError, match="unsafe python_site_packages_path"):
        python_context([python.package], [python], "/opt/conda", "linux-64", frozenset())
    with pytest.raises(LayerError, match="no Python version looks like"):
        strange = fetched(pack(tmp_path, "python", version="x"))
        python_context([strange.package], [strange], "/opt/conda", "linux-64", frozenset())
    with pytest.raises(LayerError, match="was not fetched"):
        python_context([python.package], [], "/opt/conda", "linux-64", frozenset())


def test_history(tmp_path: Path) -> None:
    context = LinkContext("/opt/conda", "3.11", "x", requested=frozenset({"b", "a"}))
    entry = history_entry([locked("b"), locked("a", subdir="noarch")], context)
    assert entry.path == "opt/conda/conda-meta/history"
    assert data_of(entry).decode().splitlines() == [
        "==> 1980-01-01 00:00:00 <==",
        "# cmd: builder build",
        "+conda-forge/noarch::a-1.0-0",
        "+conda-forge/linux-64::b-1.0-0",
        '# update specs: ["a", "b"]',
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://u:p@h.example/c/linux-64/a.conda#x", "https://h.example/c/linux-64/a.conda"),
        ("https://h.example/t/TOKEN/c/noarch/a.conda?sig=1", "https://h.example/c/noarch/a.conda"),
        ("file:///mnt/channel/noarch/a.conda", "file:///mnt/channel/noarch/a.conda"),
    ],
)
def test_recorded_url(url: str, expected: str) -> None:
    assert recorded_url(url) == expected


def test_old_prefix_lines(tmp_path: Path) -> None:
    old = conda_archive._DEFAULT_PLACEHOLDER
    members = [
        Member("etc/plain", f"a {old}".encode()),
        Member("etc/with blank", b"b " + PLACEHOLDER.encode()),
    ]
    has_prefix = f'etc/plain\n{PLACEHOLDER} text "etc/with blank"\n'.encode()
    package = fetched(
        pack(tmp_path, "thing", members, old=True, info={"has_prefix": has_prefix, "no_link": b"etc/plain\n"})
    )
    found = read(package, tmp_path)
    assert found["opt/conda/etc/plain"][1] == b"a /opt/conda"
    assert found["opt/conda/etc/with blank"][1] == b"b /opt/conda"
    assert [p.get("no_link") for p in record(found)["paths_data"]["paths"]] == [True, None]


def test_a_member_that_stands_twice_is_what_it_was_last(tmp_path: Path) -> None:
    package = fetched(pack(tmp_path, "thing", [Member("a", b"first", listed=False), Member("a", b"second")]))
    assert read(package, tmp_path)["opt/conda/a"][1] == b"second"


def test_tars_with_long_names_and_a_leading_dot(tmp_path: Path) -> None:
    name = "lib/" + "deep/" * 30 + "f\u00fc"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in (".", f"./{name}"):
            member = tarfile.TarInfo(path)
            member.type, member.size = (tarfile.DIRTYPE, 0) if path == "." else (tarfile.REGTYPE, 1)
            tar.addfile(member, io.BytesIO(b"x"))
    path = pack(tmp_path, "thing", [Member(name, b"x")])
    index = json.dumps({"name": "thing", "version": "1.0", "build": "0"}).encode()
    paths = json.dumps({"paths": [{"_path": name, "path_type": "hardlink"}]}).encode()
    write_conda(
        path, tar_of([Member("./info/index.json", index), Member("./info/paths.json", paths)]), out.getvalue()
    )
    assert read(fetched(path), tmp_path)[f"opt/conda/{name}"][1] == b"x"
