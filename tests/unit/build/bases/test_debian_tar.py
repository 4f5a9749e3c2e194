"""mmdebstrap's tar without what varies."""

from __future__ import annotations

import io
import tarfile

import pytest

from builder.build.bases.debian_tar import reproducible_tar
from builder.core.errors import ImageError
from builder.formats.trees import bounds
from tests.support.image_kit import EPOCH, member, tar_bytes


def rewritten(*members: tuple[tarfile.TarInfo, bytes]) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """The members of the result with their content, by name."""
    data = b"".join(reproducible_tar(io.BytesIO(tar_bytes(members)), EPOCH))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {}
        for info in tar:
            content = tar.extractfile(info) if info.isreg() else None
            found[info.name] = (info, content.read() if content else b"")
        return found


FIXED = {"etc/fstab", "etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf"}


def test_sparse_file() -> None:
    """A sparse file of GNU tar becomes an ordinary one with all its bytes."""
    info, data = member("./var/lib/a", b"abc")
    info.pax_headers = {"GNU.sparse.map": "2,3", "GNU.sparse.size": "1000"}
    found, content = rewritten((info, data))["var/lib/a"]
    assert content == b"\0\0abc" + bytes(995) and not found.pax_headers


def test_holes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small tar does not become a layer beyond the limit of a tree: its holes are written as zeros."""
    monkeypatch.setattr(bounds, "MAX_CONTENT", 5000)
    info, _ = member("./var/log/lastlog")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": "5001"}
    with pytest.raises(ImageError, match="the tree of mmdebstrap: its files have more than"):
        rewritten((info, b""))


def test_varying_files_are_dropped() -> None:
    """Devices, logs, caches, locks and documentation are left out; copyright files and log folders
    stay.
    """
    found = rewritten(
        member("./"),
        member("./dev/null", kind=tarfile.CHRTYPE),
        member("./etc/apt/sources.list", b"deb"),
        member("./etc/passwd", b"root"),
        member("./etc/passwd-", b"old"),
        member("./usr/share/doc/a/copyright", b"c"),
        member("./usr/share/doc/a/README", b"r"),
        member("./var/log/apt/"),
        member("./var/log/dpkg.log", b"x"),
        member("./var/lib/dpkg/lock", b""),
    )
    assert found.keys() - FIXED == {"etc/passwd", "usr/share/doc/a/copyright", "var/log/apt"}
    assert found["etc/passwd"][1] == b"root"


def test_times_and_host_files() -> None:
    """No time is after the epoch, and files with the build host's settings get a fixed content."""
    late, data = member("./bin/sh", b"#!")
    late.mtime = EPOCH + 1000
    found = rewritten((late, data), member("./etc/hostname", b"buildhost\n"))
    assert found["bin/sh"][0].mtime == EPOCH
    assert found["etc/hostname"][1] == b""
    assert found["etc/hosts"][1].startswith(b"127.0.0.1")


def test_fstab() -> None:
    """mmdebstrap 1.3.5 and 1.5.7 write one line into /etc/fstab, 1.6.0 two more: the base is the same."""
    line = b"# UNCONFIGURED FSTAB FOR BASE SYSTEM\n"
    columns = b"#\n# <file system> <mount point>   <type>  <options>       <dump>  <pass>\n"
    old, new = (tar_bytes([member("./etc/fstab", text)]) for text in (line, line + columns))
    old_base, new_base = (b"".join(reproducible_tar(io.BytesIO(tar), EPOCH)) for tar in (old, new))
    assert line in new_base and old_base == new_base


def test_hard_links() -> None:
    """Targets of hard links lose their ``./`` too; a link to a file that is left out is an error."""
    link = member("./bin/again", kind=tarfile.LNKTYPE, target="./bin/sh")
    assert rewritten(member("./bin/sh", b"#!"), link)["bin/again"][0].linkname == "bin/sh"
    link = member("./bin/again", kind=tarfile.LNKTYPE, target="./var/log/x")
    with pytest.raises(ImageError, match="hard link to a file that Debian bases leave out"):
        rewritten(member("./var/log/x", b"x"), link)
