"""A conda environment with own packages and pip packages: locked, built, run and published."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Builder, keep_base
from tests.support.channel import PLACEHOLDER, index_channel, make_package, serve
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel

ENVIRONMENT = """\
name: mine
channels:
  - {url}
  - nodefaults
dependencies:
  - python=3.11
  - greeter
  - textual
  - binary
  - activator
  - pip:
      - six==1.16.0
"""
RECIPE = """\
bytecode: none
base: debian:bookworm
environment: environments/mine.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: tests/mine}
"""


@pytest.fixture(scope="module")
def mine(module_folder: Path, base_cache: Path) -> Iterator[tuple[Builder, Path]]:
    folder = module_folder
    channel = folder / "channel"
    cache = keep_base(base_cache, folder / "cache")
    debian = make_debian_channel(CHANNEL_FOLDER)
    for subdir in ("linux-64", "noarch"):
        shutil.copytree(
            debian / subdir, channel / subdir, ignore=shutil.ignore_patterns("repodata*", "shards")
        )
    make_package(
        channel,
        "greeter",
        "1.0",
        noarch="python",
        depends=["python >=3.8"],
        entry_points=["greet = greeter:main"],
        files={"site-packages/greeter.py": "def main():\n    print('hello from', __file__)\n"},
    )
    make_package(
        channel,
        "textual",
        "1.0",
        files={"bin/where": f"#!/bin/sh\necho {PLACEHOLDER}/share\n", "share/clash": "textual\n"},
        prefix_files={"bin/where": "text"},
        symlinks={"bin/there": "where"},
    )
    make_package(
        channel,
        "binary",
        "1.0",
        depends=["textual"],
        files={"lib/blob.bin": b"\x7f\0" + PLACEHOLDER.encode() + b"/lib\0end", "share/clash": "binary\n"},
        prefix_files={"lib/blob.bin": "binary"},
    )
    make_package(
        channel,
        "activator",
        "1.0",
        files={"etc/conda/activate.d/a.sh": 'export MINE_HOME="$CONDA_PREFIX/share"\nexport MINE_PID=$$\n'},
    )
    index_channel(channel)
    (folder / "project" / "recipes").mkdir(parents=True)
    (folder / "project" / "environments").mkdir()
    (folder / "project" / "recipes" / "mine.yaml").write_text(RECIPE)
    builder = Builder(folder / "project", cache)
    with serve(channel) as server:
        (builder.root / "environments" / "mine.yml").write_text(ENVIRONMENT.format(url=server.url))
        builder.run("build", "mine")
        yield builder, channel


@pytest.fixture(scope="module")
def rootfs(mine: tuple[Builder, Path]) -> Path:
    """The built image, unpacked."""
    builder, _ = mine
    builder_rootfs = builder.root / "rootfs"
    from builder.oci.layout import read_layout
    from builder.store.blobs import Store
    from builder.trees.rootfs import unpack

    unpack(read_layout(builder.root / "dist", "mine"), builder_rootfs, Store(builder.cache))
    return builder_rootfs


def test_lock(mine: tuple[Builder, Path]) -> None:
    """The lock lists every package."""
    from conda_lock.lockfile import parse_conda_lock_file

    lock = parse_conda_lock_file(mine[0].root / "environments" / "mine.mine.lock.yml")
    names = {p.name: p.manager for p in lock.package}
    assert {"python", "greeter", "textual", "binary", "activator", "openssl"} <= names.keys()
    assert names["six"] == "pip"
    assert all(p.hash.sha256 for p in lock.package)


def test_files_equal_rattlers(mine: tuple[Builder, Path], rootfs: Path, tmp_path: Path) -> None:
    """The files are the same as those that rattler installs."""
    builder, channel = mine
    staged = install_with_rattler(builder, channel, tmp_path)
    ours, theirs = tree(rootfs / "opt/conda"), tree(staged)
    # only one side has: pip's package, rattler's own files, and conda-meta, which another test compares
    only_ours = {p for p in ours.keys() - theirs.keys() if "six" not in p}
    only_theirs = theirs.keys() - ours.keys()
    assert not {p for p in only_ours if not p.startswith("conda-meta/")}
    assert {p for p in only_theirs if not p.startswith("conda-meta/")} == {
        "CACHEDIR.TAG",
        "__clobbers__/textual/share/clash",
    }
    different = {
        p for p in ours.keys() & theirs.keys() if ours[p] != theirs[p] and not p.startswith("conda-meta/")
    }
    assert not different
    assert (rootfs / "opt/conda/share/clash").read_text() == "binary\n", (
        "binary is linked after textual, which it depends on"
    )


def install_with_rattler(builder: Builder, channel: Path, folder: Path) -> Path:
    """Installs the same packages with py-rattler for the same prefix."""
    script = """
import asyncio, os, sys, json
import rattler
from conda_lock.lockfile import parse_conda_lock_file
from pathlib import Path
lock, channel, target, cache = map(Path, sys.argv[1:])
async def main():
    locked = [p for p in parse_conda_lock_file(lock).package if p.manager == "conda"]
    names = {p.url.rsplit("/", 1)[1] for p in locked}
    gateway = rattler.Gateway(cache_dir=cache / "r")
    channels = [rattler.Channel(channel.as_uri())]
    found = await gateway.query(channels, ["linux-64", "noarch"], [p.name for p in locked], recursive=False)
    records = [r for group in found for r in group if r.file_name in names]
    assert len(records) == len(names), (len(records), len(names))
    options = {"cache_dir": cache, "show_progress": False, "alternative_target_prefix": "/opt/conda"}
    await rattler.install(records, target / "opt/conda", **options)
asyncio.run(main())
os._exit(0)  # rattler's threads may abort an interpreter that ends
"""
    lock = builder.root / "environments" / "mine.mine.lock.yml"
    subprocess.run(
        [sys.executable, "-c", script, lock, channel, folder / "stage", folder / "pkgs"], check=True
    )
    return folder / "stage" / "opt" / "conda"


def tree(folder: Path) -> dict[str, Any]:
    """Every path in a folder: the target of a link, or a file's content and whether it is executable."""
    out: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            out[name] = ("link", os.readlink(path))
        elif path.is_file():
            out[name] = ("file", bool(path.stat().st_mode & 0o100), path.read_bytes())
    return out


def test_run(mine: tuple[Builder, Path], docker_engine: Any) -> None:
    builder, _ = mine
    builder.run("build", "mine", "--load", "docker", env={"DOCKER_HOST": docker_engine.host})

    def run(*command: str) -> str:
        return str(
            docker_engine.docker("run", "--rm", "--network=none", "builder/mine:latest", *command).stdout
        )

    assert run("greet") == "hello from /opt/conda/lib/python3.11/site-packages/greeter.py\n"
    assert run("where") == run("there") == "/opt/conda/share\n"
    assert run("python", "-c", "import six; print(six.__version__)") == "1.16.0\n"
    assert run("sh", "-c", 'echo $MINE_HOME; test -n "$MINE_PID" && echo dynamic').split() == [
        "/opt/conda/share",
        "dynamic",
    ]
    assert run(
        "python", "-c", "d=open('/opt/conda/lib/blob.bin','rb').read(); print(len(d), d[2:16])"
    ).startswith(str(2 + 255 + 4 + 1 + 3))


def test_clash(mine: tuple[Builder, Path]) -> None:
    """Two packages with the same file are reported."""
    result = mine[0].json("build", "mine")
    assert {"path": "opt/conda/share/clash", "winner": "binary", "losers": ["textual"]} in result["conflicts"]


def test_publish(mine: tuple[Builder, Path], registry: Any, tmp_path: Path) -> None:
    """The image is published to a registry and to a layout; a second time nothing is sent."""
    builder, _ = mine
    first = builder.json("publish", "mine", "--to", f"{registry.host}/", "--no-tags")
    assert first["tags"] == [] and first["push"]["blobs_sent"] > 0
    again = builder.json("publish", "mine", "--to", f"{registry.host}/", "--no-tags")
    assert again["push"]["bytes_sent"] == 0 and again["digest"] == first["digest"]
    there = builder.json("publish", "mine", "--to", f"oci:{tmp_path / 'pub'}", "--no-tags")
    assert there["digest"] == first["digest"]


def test_update_sends_one_layer(mine: tuple[Builder, Path], registry: Any) -> None:
    """An update of a small package sends only the layer of its group."""
    builder, channel = mine
    builder.run("publish", "mine", "--to", f"{registry.host}/", "--no-tags")
    before = builder.json("build", "mine")
    make_package(
        channel,
        "greeter",
        "1.1",
        noarch="python",
        depends=["python >=3.8"],
        entry_points=["greet = greeter:main"],
        files={"site-packages/greeter.py": "def main():\n    print('hello again')\n"},
    )
    index_channel(channel)
    builder.run("lock", "mine", "--update", "greeter")
    after = builder.json("publish", "mine", "--to", f"{registry.host}/", "--no-tags")
    built = builder.json("build", "mine")
    changed = [
        y for x, y in zip(before["layers"], built["layers"], strict=True) if x["digest"] != y["digest"]
    ]
    # the group with greeter, and builder's own two layers, with conda-meta/history and the lock
    assert len([c for c in changed if c["packages"]]) == 1
    assert all("greeter" in c["packages"] for c in changed if c["packages"])
    assert len(changed) <= 3
    assert after["push"]["blobs_sent"] == len(changed) + 1, "the layers that changed and the config"
    assert (
        json.loads((builder.root / "dist" / "index.json").read_text())["manifests"][0]["digest"]
        == built["digest"]
    )
