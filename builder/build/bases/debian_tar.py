"""mmdebstrap's tar without everything that varies from run to run."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO

from builder.core import tarheaders as tar
from builder.core.datafiles import any_of, table
from builder.core.errors import ImageError
from builder.formats.trees.bounds import MAX_CONTENT, Tally
from builder.formats.trees.reader import TarReader

#: What mmdebstrap needs to make a base, and the base does not.
_SETTINGS = "debian_settings.txt"
#: What varies from run to run, or is for people.
_DROPPED = "debian_dropped.txt"
#: Files in it are left out, the folders stay: programs expect them.
_LOG = re.compile(r"var/log/.+")
#: Files with a fixed content. The engine fills most of them, and the build host's content must not get into
#: the image. /etc/hosts serves runtimes that do not fill it; /etc/fstab has other comments in mmdebstrap 1.6.
_FIXED: Mapping[str, str] = table(__file__, "debian_fixed.yaml")


def reproducible_tar(stream: IO[bytes], epoch: int) -> Iterator[bytes]:
    """Yield a tar of mmdebstrap without logs, caches, locks, and times after the epoch.

    Names lose their ``./``. The order is mmdebstrap's, which sorts by name; fixed files that it
    lacks come last.

    Args:
        stream: the tar of mmdebstrap, uncompressed.
        epoch: the time of the image, in seconds since 1970.

    Raises:
        ImageError: a hard link needs a file that was left out, or the tree is too large.
        TarError: the tar is damaged or empty.
    """
    dropped: set[str] = set()
    seen: set[str] = set()
    tally = Tally("the tree of mmdebstrap")  # holes count: they are written as zeros
    source = TarReader(stream, MAX_CONTENT)
    for member in source.members():
        tally.add_content(member.size)
        name = member.path.removeprefix("./").strip("/")
        if _is_dropped(name, member):
            dropped.add(name)
            continue
        info = _header(name, member, epoch)
        if member.flag == tar.HARDLINK and info.linkname in dropped:
            hint = "report this with the list of packages"
            raise ImageError(f"/{name} is a hard link to a file that Debian bases leave out", hint)
        seen.add(name)
        if name in _FIXED:
            yield from _fixed_file(name, epoch)
            continue
        yield info.tobuf(tarfile.PAX_FORMAT)
        yield from map(bytes, source.content(member))
        yield bytes(-member.size % tar.BLOCK)
    if not seen:
        raise tar.TarEnd
    for name in _FIXED:
        if name not in seen:
            yield from _fixed_file(name, epoch)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _is_dropped(name: str, member: tar.TarHeader) -> bool:
    if name in ("", "."):
        return True
    if member.flag not in (tar.FILE, tar.DIRECTORY, tar.SYMLINK, tar.HARDLINK):
        return True
    is_folder = member.flag == tar.DIRECTORY
    is_setting = bool(any_of(__file__, _SETTINGS).fullmatch(name))
    return is_setting or is_left_out(name, is_folder=is_folder)


def is_left_out(name: str, *, is_folder: bool) -> bool:
    """Return whether a path of apt and dpkg differs from run to run, or is of no use in an image.

    Args:
        name: a path in the image, without a slash at the start.
        is_folder: folders of logs stay, because programs expect them.
    """
    is_log = bool(_LOG.fullmatch(name)) and not is_folder
    return is_log or bool(any_of(__file__, _DROPPED).fullmatch(name))


def _header(name: str, member: tar.TarHeader, epoch: int) -> tarfile.TarInfo:
    """Return a header with those fields of the member that belong in the image."""
    info = tarfile.TarInfo(name)
    info.type = member.flag
    info.mode = member.mode
    info.uid, info.gid = member.uid, member.gid
    info.mtime = min(int(member.mtime), epoch)
    is_link = member.flag == tar.HARDLINK
    info.linkname = member.target.removeprefix("./") if is_link else member.target
    info.pax_headers = dict(member.xattrs)
    info.size = member.size
    return info


def _fixed_file(name: str, epoch: int) -> Iterator[bytes]:
    data = _FIXED[name].encode()
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.size = 0o644, epoch, len(data)
    yield info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
