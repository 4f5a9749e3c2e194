"""``builder cache``: what it contains and what is pruned."""

from __future__ import annotations

import fcntl
import os
import shutil
import time

import pytest

from builder.formats.oci.layout import read_layout
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit, whole


def test_unpacked_images(do: Cli, copy: TinyProject) -> None:
    """Unpacked images go after a day, other files stay; what is left and how to remove it is said."""
    rootfs = copy.cache / "rootfs"
    for name, age in (("old", 2 * 86400), ("new", 60)):
        (rootfs / name).mkdir(parents=True)
        (rootfs / name / "file").write_bytes(bytes(1000))
        os.utime(rootfs / name, (time.time() - age,) * 2)
    found = do("cache", "prune", "--json").json
    assert found["freed"] == 1000 and found["left"] > 2 << 20
    assert [path.name for path in rootfs.iterdir()] == ["new"]
    assert "left in" in (said := do("cache", "prune").out) and "builder cache prune --all" in said
    assert "--all" not in do("cache", "prune", "--all").out and not rootfs.exists()


def test_info_and_prune(do: Cli, copy: TinyProject) -> None:
    info = do("cache", "info", "--json").json
    assert (
        info["cache"] == str(copy.cache)
        and info["bytes"] == sum(p["bytes"] for p in info["folders"].values()) > 2 << 20
    )
    assert do("cache", "prune", "--json").json["freed"] == 0, "everything was used today"
    digest = do("build", "tiny", "--json").json["digest"]
    assert do("cache", "prune", "--all", "--json").json["freed"] > 2 << 20
    left = do("cache", "info", "--json").json
    assert left["bytes"] - left["folders"]["logs"]["bytes"] < 1000
    assert do("build", "tiny", "--json").json["digest"] == digest, (
        "removing the cache costs time, never a result"
    )


def test_prune_of_dist(do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs of ``dist/`` that no tag needs are deleted; pruning works outside of projects too."""
    first = do("build", "tiny", "--json").json
    edit(copy.recipe, labels={"changed": "yes"})
    second = do("build", "tiny", "--json").json
    gone = copy.root / "dist" / "blobs" / "sha256" / first["digest"].removeprefix("sha256:")
    assert gone.exists() and do("cache", "prune", "--json").json["freed"] > 0
    assert not gone.exists()
    whole(copy.root / "dist", second["digest"])
    monkeypatch.chdir("/")
    assert do("cache", "prune").code == 0, "outside of any project"


def test_prune_by_age(do: Cli, copy: TinyProject) -> None:
    """What is old and unused is deleted, what was used lately stays; uv's cache is deleted as a whole,
    unless uv holds it."""
    digest = do("build", "tiny", "--json").json["digest"]
    uv = copy.cache / "uv"
    assert (uv / "CACHEDIR.TAG").exists()
    for path in copy.cache.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    do("build", "tiny")
    used = {p.name for p in (copy.cache / "blobs" / "sha256").glob("*.seen") if p.stat().st_mtime > 10}
    with (uv / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert do("cache", "prune", "--older-than", "1").code == 0
        assert (uv / "CACHEDIR.TAG").exists()
    assert used and used == {p.name for p in (copy.cache / "blobs" / "sha256").glob("*.seen")}
    records = {p.name for p in (copy.cache / "layers").iterdir()}
    assert do("cache", "prune", "--older-than", "1").code == 0
    assert [p for p in uv.iterdir() if p.is_dir()] == []
    assert len(records) > 5 and {p.name for p in (copy.cache / "layers").iterdir()} == records, (
        "their blobs are there"
    )
    assert do("build", "tiny", "--json").json["digest"] == digest
    copy.lock.unlink()
    assert do("build", "tiny", "--json").json["digest"] == digest, "uv and rattler begin anew"
    shutil.rmtree(copy.root / "dist")
    for path in (copy.cache / "blobs" / "sha256").iterdir():
        os.utime(path, (0, 0))
    assert do("cache", "prune").code == 0 and list((copy.cache / "layers").iterdir()) == []


def test_max_size(do: Cli, copy: TinyProject) -> None:
    """What is in dist/ stays, also where nothing else is left to remove."""
    assert do("cache", "prune", "--max-size", "10GB", "--json").json["freed"] == 0
    shutil.copytree(copy.root / "dist", copy.root / "saved")
    shutil.rmtree(copy.root / "dist")
    size = do("cache", "info", "--json").json["bytes"]
    freed = do("cache", "prune", "--max-size", "1.5 MB", "--json").json
    assert freed["left"] <= 1_500_000 and freed["left"] + freed["freed"] >= size, (
        "this command has a log, too"
    )
    assert do("build", "tiny").code == 0
    result = do("cache", "prune", "--max-size", "0")
    assert result.code == 0 and "linked by dist/" in result.err
    digest = do("build", "tiny", "--json").json["digest"]
    assert read_layout(copy.root / "dist", digest).digest == digest


def test_packages(do: Cli, copy: TinyProject) -> None:
    """Archives of packages go; the same image is built, tested and published without them, offline."""
    first = do("build", "tiny", "--json").json
    blobs = copy.cache / "blobs/sha256"
    archives = [path for path in blobs.iterdir() if path.read_bytes()[:2] in (b"PK", b"BZ")]
    sizes = [path.stat().st_size for path in archives]
    assert len(archives) > 5
    freed = do("cache", "prune", "--packages", "--json").json["freed"]
    assert freed >= sum(sizes) and not [path for path in archives if path.exists()]
    assert do("--offline", "build", "tiny", "--json").json["digest"] == first["digest"]
    assert do("--offline", "publish", "tiny", "--to", f"oci:{copy.root}/out", "--no-tags").code == 0
    edit(copy.recipe, labels={"a": "b"})
    again = do("--offline", "build", "tiny", "--json").json
    layers = [layer["digest"] for layer in first["layers"]]
    assert [layer["digest"] for layer in again["layers"]][:-1] == layers[:-1]
    shutil.rmtree(copy.cache / "layers")
    lost = do("--offline", "build", "tiny")
    assert lost.code == 6 and "could not be fetched: " in lost.err and ": offline" in lost.err
    assert do("build", "tiny", "--json").json["digest"] == again["digest"]


@pytest.mark.parametrize("options", [("--max-size", "1G"), ("--all",), ("--older-than", "3")])
def test_contradiction(do: Cli, copy: TinyProject, options: tuple[str, ...]) -> None:
    result = do("cache", "prune", "--packages", *options)
    assert result.code == 2 and "contradict each other" in result.err
