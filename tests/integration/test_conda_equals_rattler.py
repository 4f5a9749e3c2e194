"""builder links conda packages like ``rattler.install``: the same files, modes and links.

The intended differences are checked here: fields of conda-meta that name the build host, and files that lose
a conflict.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rattler import BuildString, GenericVirtualPackage, PackageName, PrefixRecord, Version, install, solve

from builder.core.errors import FetchError
from builder.core.model import Fetched, LockedPackage
from builder.formats.layers.conda import conda_entries, conda_index
from builder.formats.layers.conda_layout import python_of
from builder.formats.layers.conda_order import link_order
from builder.formats.layers.conflicts import resolve_conflicts
from builder.formats.layers.entry import LinkContext
from builder.lock.conda import conda_dependencies
from tests.support.channel import index_channel
from tests.support.condapackage import PLACEHOLDER, Extension, Member, hardlink, pack, symlink, write_tree
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel

PREFIX = "/opt/conda"


@dataclass(frozen=True)
class Both:
    """The prefixes of an environment that is installed by rattler (``theirs``) and by builder (``ours``)."""

    theirs: Path
    ours: Path
    packages: list[LockedPackage]
    context: LinkContext
    conflicts: dict[str, str]

    def records(self, folder: Path) -> dict[str, dict[str, Any]]:
        return {p.stem: json.loads(p.read_text()) for p in sorted((folder / "conda-meta").glob("*.json"))}


def both(
    tmp_path: Path,
    channels: Iterable[Path],
    specs: list[str],
    prefix: str = PREFIX,
    requested: frozenset[str] = frozenset(),
) -> Both:
    """Solves the specs, and installs the result both ways."""
    theirs = tmp_path / "theirs"
    records = asyncio.run(_install(list(channels), specs, theirs, prefix, tmp_path / "cache"))
    fetched = []
    for r in records:
        path = Path(str(r.url).removeprefix("file://"))
        package = LockedPackage(
            r.name.normalized,
            str(r.version),
            "conda",
            "linux-64",
            str(r.url),
            r.sha256.hex(),
            r.md5.hex() if r.md5 else None,
            dependencies=conda_dependencies(r.depends),
        )
        fetched.append(Fetched(package, path, path.stat().st_size))
    order = link_order([f.package for f in fetched])
    python = next((f for f in fetched if f.package.name == "python"), None)
    version, site_packages = ("", "") if python is None else python_of(python)
    context = LinkContext(prefix, version, site_packages, "linux-64", requested)
    by_key = {f.package.key: f for f in fetched}
    indexes = {k: conda_index(f, context) for k, f in by_key.items()}
    resolution = resolve_conflicts(order, indexes, lambda package, path: "")
    root = tmp_path / "ours"
    for package in order:
        leave_out = resolution.leave_out.get(package.key, frozenset())
        entries = conda_entries(by_key[package.key], context, tmp_path / "spool", leave_out)
        write_tree(entries, root)
    assert list((tmp_path / "spool").iterdir()) == []
    return Both(
        theirs, root / prefix.strip("/"), order, context, {c.path: c.winner for c in resolution.conflicts}
    )


async def _install(
    channels: list[Path], specs: list[str], target: Path, prefix: str, cache: Path
) -> list[Any]:
    virtual = [GenericVirtualPackage(PackageName("__glibc"), Version("2.36"), BuildString("0"))]
    records = await solve(
        [f"file://{c}" for c in channels], specs, platforms=["linux-64", "noarch"], virtual_packages=virtual
    )
    await install(records, target, cache_dir=cache, alternative_target_prefix=prefix, show_progress=False)
    return records


def tree(folder: Path) -> dict[str, tuple[str, int, str]]:
    """Everything in a folder: kind, mode, and content (a hash) or link text.

    Left out are conda-meta, the losers of conflicts, and rattler's tag that excludes a prefix from backups.
    """
    out = {}
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(where) / name
            relative = str(path.relative_to(folder))
            if relative.split("/")[0] in ("conda-meta", "__clobbers__", "CACHEDIR.TAG"):
                continue
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                out[relative] = ("symlink", 0, os.readlink(path))
            elif stat.S_ISDIR(info.st_mode):
                out[relative] = ("dir", stat.S_IMODE(info.st_mode), "")
            else:
                out[relative] = ("file", stat.S_IMODE(info.st_mode), sha256(path.read_bytes()).hexdigest())
    return out


#: Fields of a record that name the machine, or that rattler writes and builder knows to leave out.
VOLATILE = {"extracted_package_dir", "link", "package_tarball_full_path", "size"}


def check_records(b: Both) -> None:
    """Asserts that the conda-meta records are equal, except for the differences that docs/layers.md lists."""
    theirs, ours = b.records(b.theirs), b.records(b.ours)
    assert ours.keys() == theirs.keys()
    for name, mine in ours.items():
        other = theirs[name]
        assert mine["link"] == {"source": "", "type": 3}
        assert str(b.theirs.parent) not in json.dumps(
            {k: v for k, v in mine.items() if k not in ("url", "channel")}
        )
        skip = VOLATILE | {"paths_data", "files", "requested_specs", "requested_spec", "channel"}
        assert {k: v for k, v in mine.items() if k not in skip} == {
            k: v for k, v in other.items() if k not in skip and v not in (None, [])
        } | ({k: v for k, v in mine.items() if k not in skip and v == []}), name
        assert mine["channel"].rstrip("/") == other["channel"].rstrip("/")
        paths = {p["_path"]: p for p in mine["paths_data"]["paths"]}
        assert list(paths) == mine["files"]
        losers = {p["original_path"]: p for p in other["paths_data"]["paths"] if "original_path" in p}
        assert {p.get("original_path", p["_path"]) for p in other["paths_data"]["paths"]} == paths.keys(), (
            name
        )
        for p in other["paths_data"]["paths"]:
            path = p.get("original_path", p["_path"])
            mine_path = paths[path]
            for key in ("path_type", "sha256", "file_mode", "prefix_placeholder", "no_link"):
                assert mine_path.get(key) == p.get(key), (name, path, key)
            if p["path_type"] == "softlink":  # rattler hashes the link's text, conda what it points to
                assert "sha256_in_prefix" not in mine_path
            elif p["path_type"] != "directory":
                assert mine_path["sha256_in_prefix"] == p.get("sha256_in_prefix", p.get("sha256"))
                assert mine_path["size_in_bytes"] == p["size_in_bytes"]
                if path not in losers:
                    assert sha256((b.ours / path).read_bytes()).hexdigest() == mine_path["sha256_in_prefix"]
        record = PrefixRecord.from_path(next((b.ours / "conda-meta").glob(f"{name}.json")))
        assert record.name.normalized == mine["name"]
        assert [str(f) for f in record.files] == mine["files"]
        assert record.sha256.hex() == mine["sha256"]


TEXT = (
    f"#!{PLACEHOLDER}/bin/python\nprefix = '{PLACEHOLDER}'; path = '{PLACEHOLDER}/a:{PLACEHOLDER}/b'\n"
).encode()
BINARY = (
    b"\x7fELF\0\1\2"
    + f"{PLACEHOLDER}/lib:{PLACEHOLDER}/lib64".encode()
    + b"\0"
    + b"\xff" * 100
    + PLACEHOLDER.encode()
    + b"\0tail\0"
    + b"x"
    + PLACEHOLDER.encode()
    + b"/end"
)


def members() -> list[Member]:
    return [
        Member("bin/tool", TEXT, 0o755, prefix="text"),
        Member(
            "bin/perl-tool", f"#!{PLACEHOLDER}/bin/perl -w\n".encode() + b"print 1\n", 0o775, prefix="text"
        ),
        Member("lib/libx.so.1.0", BINARY, 0o755, prefix="binary"),
        symlink("lib/libx.so.1", "libx.so.1.0"),
        symlink("lib/libx.so", "libx.so.1"),
        symlink("lib/loop", "loop"),
        symlink("share/up", "../lib"),
        symlink("share/dangling", "nothing/here"),
        Member("lib/libbig.so", os.urandom(8) * 200_000 + BINARY * 3, 0o755, prefix="binary"),
        Member(
            "share/big.txt", (b"0123456789" * 9 + PLACEHOLDER.encode() + b"\n") * 10_000, 0o664, prefix="text"
        ),
        Member("share/plain", os.urandom(3_000_000), 0o600),
        Member("share/empty", b"", 0o444),
        Member("share/setuid", b"s", 0o4755),
        Member("share/all", b"a", 0o777),
        Member("share/blank name.txt", b"b"),
        Member("share/\u00fcml\u00e4ut-" + "long" * 30, b"c"),
        hardlink("share/zz-again", "share/plain"),
        hardlink("share/00-before", "share/plain"),
        hardlink("bin/tool-again", "bin/tool", mode=0o755, prefix="text"),
        Member("share/unlisted", b"not in paths.json", listed=False),
        Member("bin/.everything-pre-unlink.sh", b"exit 1\n", 0o755),
        Member("Menu/everything.json", b"{}"),
    ]


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
def test_every_kind_of_file(tmp_path: Path, extension: Extension) -> None:
    """A package with every kind of file is linked the same way."""
    channel = tmp_path / "channel"
    pack(channel, "everything", members(), extension=extension)
    pack(channel, "empty", extension=extension)
    b = both(tmp_path, [index_channel(channel)], ["everything", "empty"])
    assert tree(b.ours) == tree(b.theirs)
    assert len(tree(b.ours)) > 20
    check_records(b)
    assert PLACEHOLDER.encode() not in (b.ours / "lib/libbig.so").read_bytes()
    assert (b.ours / "share/plain").stat().st_nlink == 3
    assert not (b.ours / "share/unlisted").exists()


@pytest.mark.parametrize(
    "prefix", ["/opt/conda", "/opt/" + "a-long-folder/" * 10 + "conda", "/opt/with blank/conda"]
)
def test_shebangs(tmp_path: Path, prefix: str) -> None:
    """Shebangs and entry points are the same for prefixes that are long or have spaces."""
    channel = tmp_path / "channel"
    python = Member("bin/python3.11", b"\x7fELF", 0o755)
    pack(channel, "python", [python, symlink("bin/python", "python3.11")], version="3.11.4")
    lines = [
        "{P}/bin/python",
        " {P}/bin/python3.11 -E",
        "{P}/bin/perl -w",
        "/usr/bin/env python",
        "{P}/bin/sh -e -u",
    ]
    scripts = [
        Member(
            f"python-scripts/s{i}",
            f"#!{line.format(P=PLACEHOLDER)}\necho {PLACEHOLDER}\n".encode(),
            0o755,
            prefix="text",
        )
        for i, line in enumerate(lines)
    ]
    pack(
        channel,
        "tool",
        [*scripts, Member("site-packages/tool.py", b"def main(): pass\n")],
        noarch="python",
        entry_points=["tool = tool:main", "sub = tool.cli:App.run"],
        depends=["python"],
    )
    b = both(tmp_path, [index_channel(channel)], ["tool"], prefix)
    assert tree(b.ours) == tree(b.theirs)
    assert (b.ours / "bin/sub").read_text().startswith("#!")
    check_records(b)


def test_conflicts(tmp_path: Path) -> None:
    """The package that rattler links last wins: after its dependencies, else in reverse order of names."""
    channel = tmp_path / "channel"
    for name, depends in {"base": (), "above": ("base",), "zeta": (), "mid": ("above", "gone")}.items():
        pack(
            channel,
            name,
            [
                Member("share/shared", name.encode()),
                Member(f"share/{name}/own", b""),
                Member(f"etc/{name}", b""),
            ],
            depends=[d for d in depends if d != "gone"],
        )
    for name, other in (("left", "right"), ("right", "left")):  # a cycle
        pack(
            channel,
            name,
            [Member("share/cycle", name.encode())],
            depends=[other],
            noarch="generic" if name == "left" else "",
        )
    for name, depends in {"app": ('also[when="base"]',), "also": ()}.items():  # a condition
        pack(channel, name, [Member("share/also", name.encode())], depends=depends)
    b = both(tmp_path, [index_channel(channel)], ["mid", "zeta", "left", "app"])
    assert tree(b.ours) == tree(b.theirs)
    expected = {"share/shared": "mid", "share/cycle": "left", "share/also": "app"}
    assert b.conflicts == {f"opt/conda/{path}": name for path, name in expected.items()}
    assert (b.ours / "share/shared").read_text() == "mid"
    check_records(b)
    # what loses lies in __clobbers__ in rattler's prefix; in an image it is left out, as conda overwrites it
    assert (b.theirs / "__clobbers__").is_dir()
    assert not (b.ours / "__clobbers__").exists()


def test_free_threaded_python(tmp_path: Path) -> None:
    """A free-threaded Python states its site-packages (CEP 17)."""
    channel = tmp_path / "channel"
    pack(
        channel,
        "python",
        [Member("bin/python3.13", b"", 0o755)],
        version="3.13.1",
        build="0_cp313t",
        index={"python_site_packages_path": "lib/python3.13t/site-packages"},
    )
    pack(
        channel,
        "pure",
        [Member("site-packages/pure.py", b"")],
        noarch="python",
        depends=["python"],
        entry_points=["p = pure:x"],
    )
    b = both(tmp_path, [index_channel(channel)], ["pure"])
    assert (b.ours / "lib/python3.13t/site-packages/pure.py").exists()
    assert tree(b.ours) == tree(b.theirs)


def test_requested_packages(tmp_path: Path) -> None:
    """Records mark the packages that the environment file lists."""
    channel = tmp_path / "channel"
    pack(channel, "dep", [Member("a", b"")])
    pack(channel, "wanted", [Member("b", b"")], depends=["dep"])
    b = both(tmp_path, [index_channel(channel)], ["wanted"], requested=frozenset({"wanted"}))
    specs = {name: r["requested_specs"] for name, r in b.records(b.ours).items()}
    assert specs == {"dep-1.0-0": [], "wanted-1.0-0": ["wanted"]}
    record = PrefixRecord.from_path(b.ours / "conda-meta/wanted-1.0-0.json")
    assert record.requested_specs == ["wanted"]


@pytest.mark.network
def test_real_python(tmp_path: Path, part_missing: Any) -> None:
    """Python with pip from the Debian channel is linked the same way, and runs."""
    try:
        channel = make_debian_channel(CHANNEL_FOLDER)
    except FetchError as e:
        part_missing(f"no Debian mirror: {e}")
    b = both(tmp_path, [channel], ["python", "pip"], requested=frozenset({"python"}))
    ours = tree(b.ours)
    assert ours == tree(b.theirs)
    assert len(ours) > 1000
    check_records(b)
    assert (b.ours / "bin/pip").read_text().startswith(f"#!{PREFIX}/bin/python3.11\n")
    out = subprocess.run(
        [b.ours / "bin/python", "-m", "pip", "--version"], capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("pip ")
