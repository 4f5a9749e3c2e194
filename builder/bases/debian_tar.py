"""mmdebstrap's tar without everything that varies from run to run."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import IO

from builder.errors import ImageError
from builder.store.files import CHUNK

_DROPPED = re.compile(
    r"dev/.+"
    r"|etc/apt/(sources\.list|sources\.list\.d/.+|apt\.conf\.d/99mmdebstrap|auth\.conf|auth\.conf\.d/.+)"
    r"|etc/dpkg/dpkg\.cfg\.d/99mmdebstrap"
    r"|etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock"
    r"|var/cache/(apt|ldconfig)/.+|var/cache/debconf/.+-old"
    r"|var/lib/apt/lists/.+|var/lib/(dpkg|apt|systemd|ucf)/[^/]+-old"
    r"|var/lib/dpkg/(lock|lock-frontend|triggers/Lock)"
    r"|var/lib/systemd/(catalog|random-seed)(/.+)?|var/lib/dbus/machine-id"
    r"|(tmp|var/tmp|run)/(?!lock$).+|root/\..*history"
    r"|usr/share/doc/[^/]+/(?!copyright$).+"
    r"|usr/share/(man|info|groff|lintian|linda)/.+|usr/share/locale/(?!locale\.alias$).+"
)
#: Files in it are left out, the folders stay: programs expect them.
_LOG = re.compile(r"var/log/.+")
#: Files with a fixed content. The engine fills most of them, and the build host's content must not get into
#: the image. /etc/hosts serves runtimes that do not fill it.
_FIXED = {
    "etc/hostname": b"",
    "etc/hosts": b"127.0.0.1\tlocalhost\n::1\tlocalhost\n",
    "etc/machine-id": b"",
    "etc/resolv.conf": b"",
}


def reproducible_tar(stream: IO[bytes], epoch: int) -> Iterator[bytes]:
    """A tar of mmdebstrap without what varies: logs, caches, locks, and times after the epoch.

    Names lose their ``./``. The order is mmdebstrap's, which sorts by name; fixed files that it lacks come
    last.

    Args:
        stream: the tar of mmdebstrap, uncompressed.
        epoch: the time of the image, in seconds since 1970.

    Raises:
        ImageError: a hard link needs a file that was left out.
        tarfile.TarError: the tar is damaged or empty.
    """
    dropped: set[str] = set()
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            name = member.name.removeprefix("./").strip("/")
            if _is_dropped(name, member):
                dropped.add(name)
                continue
            info = _header(name, member, epoch)
            if member.islnk() and info.linkname in dropped:
                raise ImageError(
                    f"/{name} is a hard link to a file that Debian bases leave out",
                    "report this with the list of packages",
                )
            seen.add(name)
            if name in _FIXED:
                yield from _fixed_file(name, epoch)
                continue
            yield info.tobuf(tarfile.PAX_FORMAT)
            yield from _content(tar, member, info.size)
    if not seen:
        raise tarfile.ReadError("empty")
    for name in _FIXED:
        if name not in seen:
            yield from _fixed_file(name, epoch)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _is_dropped(name: str, member: tarfile.TarInfo) -> bool:
    if name in ("", "."):
        return True
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return True
    is_log = bool(_LOG.fullmatch(name)) and not member.isdir()
    return is_log or bool(_DROPPED.fullmatch(name))


def _header(name: str, member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    """A header with those fields of the member that belong in the image."""
    info = tarfile.TarInfo(name)
    info.type = member.type
    info.mode = member.mode & 0o7777
    info.uid, info.gid = member.uid, member.gid
    info.mtime = min(int(member.mtime), epoch)
    info.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
    info.pax_headers = {k: v for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr.")}
    if member.isreg():
        info.size = member.size
    return info


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, size: int) -> Iterator[bytes]:
    """The content of a file, padded to whole blocks."""
    if not size:
        return
    content = tar.extractfile(member)
    assert content is not None
    while data := content.read(CHUNK):
        yield data
    yield bytes(-size % tarfile.BLOCKSIZE)


def _fixed_file(name: str, epoch: int) -> Iterator[bytes]:
    data = _FIXED[name]
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.size = 0o644, epoch, len(data)
    yield info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
