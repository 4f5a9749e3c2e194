"""Downloads and unpacks archives: sdists, and gzipped tars of any URL."""

from __future__ import annotations

import gzip
import threading
import zlib
from pathlib import Path

import httpx2

from builder.build.fetch.download import Downloader, open_partial
from builder.build.fetch.packages import fetch_packages
from builder.build.fetch.places import NotAvailable
from builder.core import tarheaders as tar
from builder.core.errors import FetchError, HashMismatch
from builder.core.model import LockedPackage
from builder.core.progress import Reporter, working
from builder.core.redact import redact
from builder.core.store.blobs import Store
from builder.core.store.files import pieces, sha256_file
from builder.core.workspace import Workspace
from builder.formats.layers.bounds import most_unpacked
from builder.formats.layers.zips import ZIP_ERRORS, open_zip
from builder.formats.net.findlinks import as_path
from builder.formats.net.http import make_client, why_unreachable
from builder.formats.net.mirrors import mirrors_of
from builder.formats.net.trust import network_hint
from builder.formats.trees.reader import TarReader

from .bounds import MAX_MEMBERS, MAX_TAR
from .target import Target

_TASK = "downloading a source"
#: The first bytes of a gzip file, and of a zip.
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


def fetch_archive(url: str, sha256: str, name: str, work: Workspace) -> tuple[Path, str]:
    """Return an archive on this machine, and its SHA-256.

    Args:
        url: http or https; may contain credentials.
        sha256: the known hash; empty: the first download decides.
        name: of the package, for messages.

    Raises:
        HashMismatch: the content has another hash.
        FetchError: no place has it, or builder is offline.
    """
    if sha256:
        package = LockedPackage(name, "(source)", "pip", "any", url, sha256)
        return fetch_packages([package], work)[0].path, sha256
    shown = redact(url)
    if work.settings.offline:
        raise FetchError(
            f"{shown}: builder is offline, and the archive has no hash to find it in the cache",
            f"write the hash: {shown}#sha256=HASH, or run once online",
        )
    tried = []
    for place in [*mirrors_of(work.settings, url), url]:
        path = as_path(place)
        if path is not None:
            if path.is_file():
                return path, sha256_file(path).removeprefix("sha256:")
            tried.append(f"{path}: no such file")
            continue
        try:
            return _download(place, name, work.store, work.reporter)
        except NotAvailable as e:
            tried.append(f"{redact(place)}: {e}")
    problem = f"{shown} could not be fetched: {'; '.join(tried)}"
    raise FetchError(problem, network_hint(problem))


def _download(url: str, name: str, store: Store, reporter: Reporter) -> tuple[Path, str]:
    """Download a file of unknown hash. Raises NotAvailable if the server does not have it."""
    package = LockedPackage(name, "(source)", "pip", "any", url, None)
    temporary = store.temporary()
    try:
        with (
            working(reporter, _TASK),
            make_client(1) as client,
            open_partial(temporary, package) as part,
        ):
            Downloader(client, 1, reporter, threading.Event()).download(package, url, part)
            digest = part.digest()
        return store.adopt(temporary, digest), digest.removeprefix("sha256:")
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        raise NotAvailable(why_unreachable(e)) from None
    finally:
        temporary.unlink(missing_ok=True)


def check_hash(path: Path, sha256: str, shown: str) -> str:
    """Return the SHA-256 of a file of the project. Raises HashMismatch if another is expected."""
    found = sha256_file(path).removeprefix("sha256:")
    if sha256 and found != sha256:
        hint = "restore the file, or lock again: builder lock"
        raise HashMismatch(f"{shown} has the sha256 {found}, not {sha256}", hint)
    return found


def unpack_archive(path: Path, filename: str, folder: Path) -> None:
    """Unpack a gzipped tar or a zip into a new folder.

    Args:
        path: the archive.
        filename: its name, for messages.
        folder: where.

    Raises:
        FetchError: it is damaged, a member leads out of the folder, or it is too large.
        SpaceError: the disk is full.
    """
    with path.open("rb") as file:
        first = file.read(len(_ZIP))
    if not first.startswith((_GZIP, _ZIP)):
        raise FetchError(
            f"{filename} is neither a gzipped tar nor a zip, the archives that builder unpacks",
            "name the .tar.gz of the same source, or its repository: git+https://HOST/OWNER/NAME",
        )
    target = Target(folder, filename, most_unpacked(path.stat().st_size))
    try:
        if first == _ZIP:
            _unpack_zip(path, target)
        else:
            with gzip.open(path) as stream:
                _unpack_tar(TarReader(stream, MAX_TAR), target)
    except (*ZIP_ERRORS, tar.TarError, OSError, EOFError, zlib.error, ValueError) as e:
        raise FetchError(
            f"{filename}: a damaged archive: {str(e) or type(e).__name__}",
            "fetch it again, or name another one",
        ) from None
    target.finish()


def _unpack_zip(path: Path, target: Target) -> None:
    """Unpack a zip; what would be a symlink becomes a file with its text."""
    with open_zip(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                target.add_folder(_clean(member.filename))
                continue
            with archive.open(member) as stream:
                name, executable = _clean(member.filename), bool(member.external_attr >> 16 & 0o100)
                target.add_file(name, member.file_size, pieces(stream), executable=executable)


def _unpack_tar(reader: TarReader, target: Target) -> None:
    for number, header in enumerate(reader.members(sparse=False), 1):
        if number > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} members")
        name = _clean(header.path)
        if name:
            _add(name, header, reader, target)


def _add(name: str, header: tar.TarHeader, reader: TarReader, target: Target) -> None:
    """Unpack one member of a tar."""
    if header.flag == tar.DIRECTORY:
        target.add_folder(name)
    elif header.flag == tar.SYMLINK:
        target.add_link(name, header.target)
    elif header.flag == tar.HARDLINK:
        target.add_copy(name, _clean(header.target))
    elif header.flag == tar.FILE:
        executable = bool(header.mode & 0o100)
        target.add_file(name, header.size, reader.content(header), executable=executable)
    else:
        hint = "the archive is hostile: do not use it"
        raise FetchError(f"{target.name}: {name!r} is a device or a pipe", hint)


def _clean(name: str) -> str:
    """Return a member's path without ``./`` and the last ``/``; empty for the root."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    name = name.rstrip("/")
    return "" if name == "." else name
