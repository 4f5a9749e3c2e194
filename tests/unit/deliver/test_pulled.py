"""The record of a pull: into an engine, or into ``dist/``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.errors import BuilderError, ImageError
from builder.deliver.pulled import Pull, forget_pull, record_pull, recorded_pull

WHOLE = {"engine": "docker", "reference": "h/a:1", "image": "h/a@sha256:1", "image_id": "sha256:2"}
#: A record with each value replaced by one that an image in an engine does not have.
WRONG = [
    json.dumps({**WHOLE, name: value})
    for name, value in (
        ("image", "--volume=/:/"),
        ("image", "sha256:1"),
        ("image_id", ""),
        ("reference", "--volume=/:/"),
        ("reference", "oci:/a b:1"),
    )
]


def test_record(tmp_path: Path) -> None:
    """The last pull of each target is known until it is forgotten."""
    folder = tmp_path / "dist"
    first = Pull("h/a:latest", "h/a@sha256:1", "podman", "sha256:2")
    second = Pull("oci:/a b:26.11", "sha256:3")
    assert recorded_pull(folder, "a") is None
    record_pull(folder, "a", first)
    record_pull(folder, "a", second)
    assert recorded_pull(folder, "a") == second and recorded_pull(folder, "b") is None
    forget_pull(folder, "a")
    forget_pull(folder, "a")
    assert recorded_pull(folder, "a") is None


def test_no_folder(tmp_path: Path) -> None:
    """A folder that cannot be written to is an error that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(BuilderError, match=f"cannot write to {tmp_path}/file/dist"):
        forget_pull(tmp_path / "file" / "dist", "a")
    with pytest.raises(BuilderError, match=f"cannot write to {tmp_path}/file/dist"):
        record_pull(tmp_path / "file" / "dist", "a", Pull("h/a:b", "sha256:1"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engine": "docker"}', *WRONG])
def test_damaged(text: str, tmp_path: Path) -> None:
    """A damaged record is an error that says what to remove."""
    (tmp_path / "a.pulled.json").write_text(text)
    with pytest.raises(ImageError, match="a.pulled.json cannot be read") as error:
        recorded_pull(tmp_path, "a")
    assert error.value.hint == f"remove the file: rm {tmp_path}/a.pulled.json"
