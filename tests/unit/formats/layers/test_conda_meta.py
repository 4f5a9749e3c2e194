"""The files in conda-meta."""

from __future__ import annotations

import json
from pathlib import Path

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
    package = fetched(
        path, url=f"https://me:secret@conda.example/t/to-ken/chan/linux-64/{path.name}?sig=own#key"
    )
    text = json.dumps(record(read(package, tmp_path)))
    for word in ("secret", "to-ken", "sig=own", "#key", str(tmp_path), "/home/me", "evil"):
        assert word not in text
    assert "https://conda.example/chan/linux-64/thing-1.0-0.conda" in text
