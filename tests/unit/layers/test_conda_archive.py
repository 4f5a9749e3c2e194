"""Conda archives that are damaged, unsafe or something else."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from builder.errors import LayerError, SpaceError
from builder.layers import conda_spool
from builder.layers.conda import CondaReader
from builder.model import Fetched, LockedPackage
from tests.support.conda_reader import CONTEXT, EXTENSIONS, read
from tests.support.condapackage import (
    Extension,
    Member,
    fetched,
    hardlink,
    pack,
    symlink,
    tar_of,
    write_conda,
)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (Member("/etc/passwd", b"x", listed=False), "unsafe member '/etc/passwd'"),
        (Member("../up", b"x", listed=False), "unsafe member '../up'"),
        (
            Member("dev/null", kind="device", listed=False),
            "member 'dev/null' is not a file, a link or a folder",
        ),
        (Member("lib/dev", kind="device"), "member 'lib/dev' is not a file"),
        (
            hardlink("lib/h", "/etc/shadow"),
            "member 'lib/h' is a hard link to '/etc/shadow', which is not a file of the package",
        ),
        (
            hardlink("lib/h", "lib/h"),
            "member 'lib/h' is a hard link to 'lib/h', which is not a file of the package",
        ),
        (symlink("lib/abs", "/etc/passwd"), "'lib/abs' is a link that leaves the environment: '/etc/passwd'"),
        (symlink("lib/abs", "/opt/condaX"), "'lib/abs' is a link that leaves the environment"),
        (symlink("lib/up", "../../x"), "'lib/up' is a link that leaves the environment: '../../x'"),
        (symlink("lib/up", "a/b/../../../../conda/x"), "leaves the environment"),
        (symlink("up", ".."), "'up' is a link that leaves the environment"),
        (symlink("lib/nul", "x\udcff"), "'lib/nul' is a link to"),
    ],
)
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_unsafe_members(tmp_path: Path, member: Member, message: str, extension: Extension) -> None:
    """Unsafe members of the tar are refused by name, and no temporary file remains."""
    package = fetched(pack(tmp_path, "thing", [member], extension=extension))
    with pytest.raises(LayerError, match="thing-1.0-0") as e:
        read(package, tmp_path)
    assert message in e.value.message
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 0.95])
def test_truncated_archives(tmp_path: Path, extension: Extension, keep: float) -> None:
    """A truncated archive is named, and no temporary file remains."""
    path = pack(
        tmp_path,
        "thing",
        [Member(f"share/{i}", hashlib.sha256(b"%d" % i).digest() * 500) for i in range(20)],
        extension=extension,
    )
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(LayerError, match=f"thing-1.0-0{extension}") as e:
        read(fetched(path), tmp_path)
    assert "fetch it again" in str(e.value)
    assert not (tmp_path / "spool").exists() or list((tmp_path / "spool").iterdir()) == []


def test_other_archives(tmp_path: Path) -> None:
    """Files that are not conda packages are refused by name."""
    path = tmp_path / "linux-64" / "thing-1.0-0.conda"
    path.parent.mkdir()
    write_conda(path, tar_of([]), tar_of([]))
    with pytest.raises(LayerError, match="no info/index.json"):
        read(fetched(path), tmp_path)
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(LayerError, match="thing-1.0-0.conda: cannot be read"):
        read(fetched(path), tmp_path)
    with pytest.raises(LayerError, match="'thing-1.0.whl' is not a conda package"):
        read(fetched(path, url="https://conda.example/linux-64/thing-1.0.whl"), tmp_path)
    path.unlink()
    with pytest.raises(LayerError, match="thing-1.0-0.conda: cannot be read: .*No such file"):
        read(
            Fetched(
                LockedPackage(
                    "thing", "1.0", "conda", "linux-64", f"https://x/linux-64/{path.name}", "0" * 64
                ),
                path,
                1,
            ),
            tmp_path,
        )


def test_full_disk(tmp_path: Path) -> None:
    """A full disk raises SpaceError."""
    package = fetched(pack(tmp_path, "thing", [Member("a", b"x" * 3_000_000)]))
    full = Path("/dev/full")
    with pytest.raises(SpaceError, match="no space left|cannot write"):
        read_into = CondaReader(tmp_path)
        original = conda_spool.tempfile.NamedTemporaryFile
        conda_spool.tempfile.NamedTemporaryFile = lambda **_: full.open("wb", buffering=0)  # type: ignore[assignment,misc]
        try:
            list(read_into.entries(package, CONTEXT))
        finally:
            conda_spool.tempfile.NamedTemporaryFile = original  # type: ignore[misc]
