"""The last step of making the Debian channel: its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.channel.contents import FORMAT
from builder.channel.debian import _MARKER, _replace


def channel(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    (folder / name / _MARKER).write_text(f"{FORMAT}\n")
    (folder / name / "name").write_text(name)
    return folder / name


@pytest.mark.parametrize("exists", [True, False])
def test_replace(tmp_path: Path, exists: bool) -> None:
    """The new channel has the name; the one before is kept aside until it is removed with the rest."""
    old = channel(tmp_path, "old") if exists else tmp_path / "old"
    _replace(old, channel(tmp_path, "new"), tmp_path / "before")
    assert (old / "name").read_text() == "new" and (tmp_path / "before").exists() == exists


def test_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, another process may give its channel the name in between: that one stays."""
    target = tmp_path / "channel"
    rename = Path.rename

    def other_first(path: Path, to: Path) -> Path:
        if path.name == "mine":
            rename(channel(tmp_path, "theirs"), target)
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", other_first)
    _replace(target, channel(tmp_path, "mine"), tmp_path / "before")
    assert (target / "name").read_text() == "theirs"
