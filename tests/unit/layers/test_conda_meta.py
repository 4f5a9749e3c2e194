"""The files in conda-meta."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.layers.conda_meta import recorded_url
from tests.support.conda_reader import read, record
from tests.support.condapackage import (
    Member,
    fetched,
    pack,
)


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
