"""What differs between two locks."""

from __future__ import annotations

from dataclasses import replace

from builder.core.model import Lock, LockedBase, LockedPackage
from builder.lock.changes import compare_locks

BASE = LockedBase("debian:bookworm", "sha256:" + "e" * 64)


def conda(name: str, version: str, build: str = "0", sha: str = "a") -> LockedPackage:
    url = f"https://host.example/linux-64/{name}-{version}-{build}.conda"
    return LockedPackage(name, version, "conda", "linux-64", url, sha * 64)


def pip(name: str, version: str, sha: str = "b") -> LockedPackage:
    url = f"https://host.example/{name}-{version}-py3-none-any.whl"
    return LockedPackage(name, version, "pip", "linux-64", url, sha * 64)


def lock(*packages: LockedPackage, base: LockedBase | None = BASE) -> Lock:
    return Lock(packages, ("linux-64",), base=base)


def test_changes() -> None:
    """Packages are compared by hash, platform, name and manager; a change shows what tells versions apart."""
    old = lock(
        conda("zlib", "1.2"), conda("same", "1"), conda("built", "1"), pip("numpy", "2.0"), conda("gone", "3")
    )
    new = lock(
        conda("zlib", "1.3", sha="c"),
        conda("same", "1"),
        conda("built", "1", "h1_1", "c"),
        pip("numpy", "2.0", "d"),
        pip("gone", "3"),
    )
    changes = compare_locks(old, new)
    found = [(c.name, c.manager, c.old, c.new, c.kind) for c in changes.packages]
    assert found == [
        ("built", "conda", "1 0", "1 h1_1", "changed"),
        ("gone", "conda", "3", None, "removed"),
        ("gone", "pip", None, "3", "added"),
        ("numpy", "pip", "2.0 sha256:bbbbbbbbbbbb", "2.0 sha256:dddddddddddd", "changed"),
        ("zlib", "conda", "1.2", "1.3", "changed"),
    ]
    assert changes.count("changed") == 3 and not changes.base_moved and changes
    assert changes.to_json()["base"] is None


def test_base() -> None:
    """A moved base is a change; equal locks have none."""
    one = lock(conda("a", "1"))
    assert not compare_locks(one, one)
    moved = compare_locks(one, replace(one, base=LockedBase("debian:trixie", "sha256:" + "f" * 64)))
    assert moved and moved.base_moved and moved.packages == ()
    assert moved.to_json()["base"]["new"]["reference"] == "debian:trixie"
