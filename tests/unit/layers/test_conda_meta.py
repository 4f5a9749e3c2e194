"""The files in conda-meta."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.layers.conda_meta import history_entry, recorded_url
from builder.layers.entry import LinkContext
from builder.model import LockedPackage
from tests.support.conda_reader import read, record
from tests.support.condapackage import (
    Member,
    data_of,
    fetched,
    pack,
)


def locked(name: str, subdir: str = "linux-64") -> LockedPackage:
    url = f"https://conda.anaconda.org/conda-forge/{subdir}/{name}-1.0-0.conda"
    return LockedPackage(name, "1.0", "conda", "linux-64", url, "0" * 64)


def test_record_without_secrets(tmp_path: Path) -> None:
    """A record holds no credentials, and nothing of the build host."""
    path = pack(
        tmp_path, "thing", [Member("a", b"x")], index={"files": ["evil"], "extracted_package_dir": "/home/me"}
    )
    package = fetched(path, url=f"https://me:secret@conda.example/t/to-ken/chan/linux-64/{path.name}")
    text = json.dumps(record(read(package, tmp_path)))
    for word in ("secret", "to-ken", str(tmp_path), "/home/me", "evil"):
        assert word not in text
    assert "https://conda.example/chan/linux-64/thing-1.0-0.conda" in text


def test_history(tmp_path: Path) -> None:
    """The history lists channel and package of every package, and the requested names."""
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
    """A recorded URL has no credentials, token, query or fragment."""
    assert recorded_url(url) == expected
