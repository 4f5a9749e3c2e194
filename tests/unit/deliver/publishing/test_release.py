"""Release records: what they hold, and what is not one."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from builder.deliver.publishing.release import RELEASE, SIGNED_RELEASE, ReleaseRecord, signed_release
from builder.formats.registry.referrers import Attached

IMAGE, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
RECORD = ReleaseRecord(
    image=IMAGE,
    target="t",
    created=datetime.datetime(2026, 11, 28, 4, 0, 0, 5, tzinfo=datetime.UTC),
    action="promote",
    tags={"26.11": None, "latest": OTHER},
    fixed=("26.11",),
    attached={"application/vnd.cyclonedx+json": OTHER},
)


def stored(record: ReleaseRecord, **change: Any) -> Attached:
    """The record as a registry returns it, with these keys changed."""
    file = record.artifact().files[0]
    data = json.dumps(json.loads(file.data) | change).encode()
    return Attached(OTHER, RELEASE, (replace(file, data=data),), {}, IMAGE)


def test_round_trip() -> None:
    """What is written is read, and keys of later versions are left alone."""
    assert ReleaseRecord.read(stored(RECORD), IMAGE) == RECORD
    assert ReleaseRecord.read(stored(RECORD, later="key"), IMAGE) == RECORD
    created = RECORD.artifact().annotations["org.opencontainers.image.created"]
    assert datetime.datetime.fromisoformat(created) == RECORD.created


def test_same_bytes() -> None:
    """Processes with other hashes of strings write the same artifact."""
    code = f"from {__name__} import RECORD; print(RECORD.artifact())"
    written = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(written) == 1


@pytest.mark.parametrize(
    "change", [{"artifact_type": "a/b"}, {"subject": OTHER}, {"files": ()}, {"files": 2}], ids=str
)
def test_no_artifact_of_a_record(change: dict[str, Any]) -> None:
    """An artifact of another type or image, or with none or two files."""
    found = stored(RECORD)
    files = {"files": found.files * 2} if change == {"files": 2} else {}
    assert ReleaseRecord.read(replace(found, **(change | files)), IMAGE) is None


def test_signed_release() -> None:
    """A signature names a record by its digest; anything else is no name."""
    assert signed_release({SIGNED_RELEASE: IMAGE}) == IMAGE
    for odd in ("sha256:12", "", None, ["sha256:12"], 7, [], {}, "latest", IMAGE.upper(), f"{IMAGE}\n"):
        assert signed_release({SIGNED_RELEASE: odd}) == "" == signed_release({}), odd
