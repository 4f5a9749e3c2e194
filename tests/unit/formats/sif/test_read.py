"""SIFs read, and refused with a reason."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import open_base, resolve_base
from builder.core.errors import ImageError
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.sif.read import open_sif
from tests.support.sif_place import Place, without_descriptors

DESCRIPTORS = 4096
DESCRIPTOR = 585


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    one = Place(tmp_path_factory.mktemp("good"))
    return one.sif(one.image()).path.read_bytes()


def _partition_at(data: bytes) -> int:
    """Where the descriptor of the primary partition is."""
    for number in range(48):
        at = DESCRIPTORS + number * DESCRIPTOR
        if struct.unpack_from("<i", data, at)[0] == 0x4004:
            return at
    raise AssertionError


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _refused(place: Place, data: bytes | None, architecture: str = "amd64") -> ImageError:
    path = place.folder / "base.sif"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ImageError) as e:
        resolve_base(
            "sif:base.sif",
            WantedBase(architecture, root=place.folder),
            Workspace(place.settings, place.store),
        )
    assert "base.sif" in e.value.message
    assert e.value.hint
    return e.value


def test_hashed_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIF is hashed once, and again when it changes."""
    base = place.sif(place.image(), "base.sif")
    other = Store(place.folder / "other")
    assert open_sif(base.path, other).digest == base.digest

    def again(path: Path) -> str:
        raise AssertionError(f"{path} is hashed again")

    monkeypatch.setattr("builder.formats.sif.read.sha256_file", again)
    assert open_sif(base.path, other).digest == base.digest
    os.utime(base.path, ns=(1, 1))
    with pytest.raises(AssertionError, match="is hashed again"):
        open_sif(base.path, other)


@pytest.mark.parametrize("length", [200, 5000, 40000])
def test_truncated(place: Place, good: bytes, length: int) -> None:
    """A SIF that was cut is refused, wherever the cut is."""
    assert f"is cut short: it has {length} bytes" in _refused(place, good[:length]).message


def test_not_a_sif(place: Place) -> None:
    """Other files are refused."""
    assert "is not a SIF" in _refused(place, b"").message
    assert "is not a SIF" in _refused(place, b"<!DOCTYPE html>" + bytes(500)).message


def test_not_squashfs(place: Place, good: bytes) -> None:
    """SIFs without a squashfs root file system are refused."""
    at = _partition_at(good)
    error = _refused(place, _with(good, at + 201, struct.pack("<i", 2)))
    assert "a partition of its root file system is not squashfs" in error.message
    assert "apptainer build" in error.hint and "leaves out overlays" in error.hint
    assert (
        "has no primary system partition"
        in _refused(place, _with(good, at + 205, struct.pack("<i", 3))).message
    )
    assert "is an OCI-SIF" in _refused(place, _with(good, DESCRIPTORS, struct.pack("<i", 0x400A))).message


def test_config_from_scripts(place: Place, good: bytes) -> None:
    """Without an OCI config, one is composed of scripts and labels."""
    (place.folder / "base.sif").write_bytes(without_descriptors(good))
    locked = resolve_base(
        "sif:base.sif", WantedBase("amd64", root=place.folder), Workspace(place.settings, place.store)
    )
    base = open_base(locked, WantedBase("amd64", root=place.folder), Workspace(place.settings, place.store))
    env = dict(e.split("=", 1) for e in base.config["config"]["Env"])
    assert env["PATH"].startswith("/opt/conda/bin:")
    assert base.config["config"]["Entrypoint"] == ["/.singularity.d/runscript"]
    assert base.config["config"]["Labels"]["org.builder.target"] == "tiny"


def test_damaged_squashfs(place: Place, good: bytes) -> None:
    """The error for a damaged squashfs names the SIF and the partition."""
    offset = struct.unpack_from("<q", good, _partition_at(good) + 17)[0]
    (place.folder / "base.sif").write_bytes(_with(good, offset, bytes(4)))
    base = open_sif(place.folder / "base.sif", place.store)
    with pytest.raises(ImageError, match=r"base\.sif \(partition 1\) is not a squashfs"):
        place.sif(place.image(), "b.sif", base=base)


# files that others wrote ------------------------------------------------------------------------------------


def _descriptor(data: bytes, number: int, *, offset: int | None = None, size: int | None = None) -> bytes:
    """The SIF with another place of one object."""
    at = DESCRIPTORS + number * DESCRIPTOR + 17
    old_offset, old_size = struct.unpack_from("<2q", data, at)
    place = (old_offset if offset is None else offset, old_size if size is None else size)
    return _with(data, at, struct.pack("<2q", *place))


def test_overlapping_objects(place: Place, good: bytes) -> None:
    """Objects do not share bytes with each other or with the header: a bomb of partitions is refused."""
    at = _partition_at(good)
    start, size = struct.unpack_from("<2q", good, at + 17)
    descriptor = good[at : at + DESCRIPTOR]
    assert "overlap each other" in _refused(place, _descriptor(good, 0, offset=start, size=1)).message
    assert "overlap each other" in _refused(place, _descriptor(good, 0, offset=0, size=9)).message
    again = _with(good, DESCRIPTORS + 47 * DESCRIPTOR, descriptor)
    assert "overlap each other" in _refused(place, again).message
    assert size


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"[" * 300 + b"]" * 300, "nested more than"),
        (b'{"config": 5}', "oci-config.json: config: input should be"),
        (b'{"config": {"Env": "A=1"}}', "config.Env: input should be a valid list"),
        (b"[5]", "oci-config.json: input should be an object"),
        (b'{"config": {}, "config": null}', "occurs twice"),
    ],
)
def test_config_refused(place: Place, good: bytes, config: bytes, message: str) -> None:
    """A config of the wrong shape is refused."""
    offset, size = struct.unpack_from("<2q", good, DESCRIPTORS + 2 * DESCRIPTOR + 17)
    assert message in _refused_base(place, _with(good, offset, config.ljust(size))).message


def _refused_base(place: Place, data: bytes) -> ImageError:
    (place.folder / "base.sif").write_bytes(data)
    locked = resolve_base_or_error(place)
    assert isinstance(locked, ImageError)
    assert "base.sif" in locked.message and locked.message.isprintable()
    return locked


def resolve_base_or_error(place: Place) -> object:
    try:
        return resolve_base(
            "sif:base.sif", WantedBase("amd64", root=place.folder), Workspace(place.settings, place.store)
        )
    except ImageError as e:
        return e


def test_pipe(place: Place) -> None:
    """Nothing waits for a pipe in the place of a SIF."""
    os.mkfifo(place.folder / "base.sif")
    assert "is not an ordinary file" in _refused(place, None).message


def test_encrypted(place: Place, good: bytes) -> None:
    """An encrypted SIF is refused."""
    data = _with(good, _partition_at(good) + 201, struct.pack("<i", 5))
    error = _refused(place, data)
    assert "is encrypted" in error.message
    assert "without encryption" in error.hint


def test_other_architecture(place: Place, good: bytes) -> None:
    """A SIF for another architecture is refused."""
    assert "is for amd64, not for arm64" in _refused(place, good, "arm64").message
