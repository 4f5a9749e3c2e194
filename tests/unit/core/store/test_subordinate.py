"""Subordinate ids, and the removal of their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.store import subordinate
from builder.core.store.subordinate import ranges, remove_mapped


def test_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this user, by name or number; a damaged line or no file gives none."""
    monkeypatch.setattr(subordinate, "user_name", lambda: "ada")
    file = tmp_path / "subuid"
    assert ranges(file) == []
    file.write_text(f"bob:1:2\nada:165536:65536\nada:7\n\n{os.geteuid()}:300000:9\n")
    assert ranges(file) == [("165536", "65536"), ("300000", "9")]


def test_no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ids cannot be mapped, nothing is removed, and the error names the folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(PermissionError) as caught:
        remove_mapped(tmp_path / "folder")
    assert caught.value.filename == str(tmp_path / "folder") and (tmp_path / "folder").exists()
