"""Markdown of lock changes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from builder.cli.markdown import code, lock_changes
from builder.core.model import LockedBase
from builder.lock.changes import LockChange, LockChanges
from tests.support.channel import index_channel, make_package
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy", "`numpy`"),
        ("", ""),
        ("a|b", "`a\\|b`"),
        ("`<img src=x>`\n@me", "`'<img src=x>' @me`"),
        ("\x1b[2J", "`\\x1b[2J`"),
    ],
)
def test_code(text: str, expected: str) -> None:
    """Foreign text stays text."""
    assert code(text) == expected


def change(name: str, old: str | None, new: str | None) -> LockChange:
    return LockChange(name, "conda", "linux-64", old, new)


def test_lock_changes() -> None:
    """A section for each target: counts, the base, and a table."""
    base = LockedBase("debian:bookworm", "sha256:" + "e" * 64)
    moved = LockedBase("debian:bookworm", "sha256:" + "f" * 64)
    changes = LockChanges((change("zlib", "1", "2"), change("new", None, "3")), base, moved)
    text = lock_changes([("cpu", changes)])
    assert text.splitlines() == [
        "## `cpu`",
        "",
        "Packages: 1 changed, 1 added, 0 removed; the base image moved.",
        "",
        "| package | from | before | after |",
        "|---|---|---|---|",
        "| `base image` |  | `debian:bookworm sha256:eeeeeeeeeeee` | `debian:bookworm sha256:ffffffffffff` |",
        "| `zlib` | `conda` | `1` | `2` |",
        "| `new` | `conda` | `new` | `3` |",
    ]
    assert lock_changes([]) == "No lock changed.\n"


def test_lock_and_diff(do: Cli, copy: TinyProject, tmp_path: Path) -> None:
    """``lock --changes`` and ``diff`` of two locks report the same."""
    before = shutil.copy(copy.lock, tmp_path / "before.lock.yml")
    notes = tmp_path / "changes.md"
    same = do("lock", "tiny", "--changes", notes)
    assert same.code == 0 and "No package changed." in same.out and notes.read_text() == "No lock changed.\n"
    assert do("diff", before, copy.lock, "--json").json["equal"]

    make_package(tmp_path / "more", "extra", "1.0", files={"share/extra": "x"})
    index_channel(tmp_path / "more")
    channels = [(tmp_path / "more").as_uri(), *_channels(copy)]
    edit(copy.environment, channels=channels, dependencies=["python=3.11", "greeter", "extra"])
    changed = do("lock", "tiny", "--changes", notes, "--json").json[0]["changes"]
    assert {c["name"] for c in changed["packages"]} == {"extra", "bulky", "pure", "pip"}
    assert "Packages: 0 changed, 1 added, 3 removed." in notes.read_text()
    assert "| `extra` | `conda` | `new` | `1.0` |" in notes.read_text()
    differ = do("diff", before, copy.lock)
    assert differ.code == 1 and re.search(r"extra +conda +new +1\.0\n", differ.out)
    assert do("diff", before, copy.lock, "--json").json["packages"] == changed["packages"]
    page = do("diff", before, copy.lock, "--format", "markdown")
    assert page.code == 1 and "| `bulky` | `conda` | `1.0` | `gone` |" in page.out


def _channels(project: TinyProject) -> list[str]:
    lines = project.environment.read_text().splitlines()
    return [line.strip("- ") for line in lines if "http://" in line]
