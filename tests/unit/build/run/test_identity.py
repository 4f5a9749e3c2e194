"""Who root in a container is on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.build.run import identity
from builder.build.run.identity import STRANGER, Identity, container_root

ALL = "         0          0 4294967295\n"
NESTED = "         0     100000      65536\n"


def test_container_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the root of the whole machine is replaced."""
    stranger = Identity(STRANGER, STRANGER)
    id_map = tmp_path / "map"
    monkeypatch.setattr(identity, "_ID_MAPS", (id_map, id_map))
    id_map.write_text(ALL)
    for function in ("geteuid", "getuid", "getgid"):
        monkeypatch.setattr(os, function, lambda: 0)
    assert container_root(keep_root=False) == stranger and not stranger.is_own
    assert container_root(keep_root=True) == Identity(0, 0)
    id_map.write_text(NESTED)
    assert container_root(keep_root=False) == Identity(0, 0)
    id_map.write_text(ALL)
    for function in ("geteuid", "getuid", "getgid"):
        monkeypatch.setattr(os, function, lambda: 1000)
    assert container_root(keep_root=False) == Identity(1000, 1000)


def test_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are changed themselves, not what they lead to."""
    (tmp_path / "tree/folder").mkdir(parents=True)
    (tmp_path / "tree/folder/link").symlink_to("/etc/passwd")
    given = []

    def chown(path: str | Path, uid: int, gid: int, **more: object) -> None:
        given.append((Path(path).name, uid, gid, more.get("follow_symlinks")))

    monkeypatch.setattr(os, "chown", chown)
    Identity(4711, 4712).give(tmp_path / "tree")
    expected = {("tree", 4711, 4712, None), ("folder", 4711, 4712, False), ("link", 4711, 4712, False)}
    assert set(given) == expected
    given.clear()
    Identity(os.getuid(), os.getgid()).give(tmp_path / "tree")
    assert given == []
