"""Downloads and unpacks archives: sdists, and tar and zip files of any URL."""

from __future__ import annotations

import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import httpx

from builder.errors import FetchError, HashMismatch
from builder.fetch.download import Downloader, open_partial
from builder.fetch.failure import NotAvailable, first_line
from builder.fetch.packages import fetch_packages
from builder.layers.limits import most_unpacked
from builder.layers.zips import ZIP_ERRORS, ZipSource, check_method
from builder.model import LockedPackage
from builder.net.findlinks import as_path
from builder.net.http import make_client
from builder.net.mirrors import mirrors_of
from builder.progress import Reporter, working
from builder.redact import redact
from builder.settings import Settings
from builder.sources.limits import MAX_MEMBERS, MAX_PATH
from builder.sources.target import Target
from builder.store.blobs import Store
from builder.store.files import sha256_file
from builder.tarheaders import MAX_EXTENDED
from builder.trees.xz import XzFile

_TASK = "downloading a source"
_DAMAGED = (tarfile.TarError, *ZIP_ERRORS)
_XZ_MAGIC = b"\xfd7zXZ"


def filename_of(url: str) -> str:
    """The file name of an archive."""
    path = urlsplit(url).path if "://" in url else url
    return unquote(path).rpartition("/")[2]


def fetch_archive(
    url: str, sha256: str, name: str, settings: Settings, store: Store, reporter: Reporter
) -> tuple[Path, str]:
    """An archive on this machine, and its SHA-256.

    Args:
        url: http or https; may contain credentials.
        sha256: the known hash; empty: the first download decides.
        name: of the package, for messages.
        settings: mirrors, and whether to work offline.
        store: where it is stored.
        reporter: receives progress.

    Raises:
        HashMismatch: the content has another hash.
        FetchError: no place has it, or builder is offline.
    """
    if sha256:
        package = LockedPackage(name, "(source)", "pip", "any", url, sha256)
        return fetch_packages([package], settings, store, reporter=reporter)[0].path, sha256
    shown = redact(url)
    if settings.offline:
        raise FetchError(
            f"{shown}: builder is offline, and the archive has no hash to find it in the cache",
            f"write the hash: {shown}#sha256=HASH, or run once online",
        )
    tried = []
    for place in [*mirrors_of(settings, url), url]:
        path = as_path(place)
        if path is not None:
            if path.is_file():
                return path, sha256_file(path).removeprefix("sha256:")
            tried.append(f"{path}: no such file")
            continue
        try:
            return _download(place, name, store, reporter)
        except NotAvailable as e:
            tried.append(f"{redact(place)}: {e}")
    raise FetchError(
        f"{shown} could not be fetched: {'; '.join(tried)}",
        "check the address and the network, or set a mirror: BUILDER_MIRRORS='FROM=TO'",
    )


def _download(url: str, name: str, store: Store, reporter: Reporter) -> tuple[Path, str]:
    """Downloads a file whose hash is not known. Raises NotAvailable if the server does not have it."""
    package = LockedPackage(name, "(source)", "pip", "any", url, None)
    temporary = store.temporary()
    try:
        with working(reporter, _TASK), make_client(1) as client, open_partial(temporary, package) as part:
            Downloader(client, 1, reporter, threading.Event()).download(package, url, part)
            digest = part.digest()
        return store.adopt(temporary, digest), digest.removeprefix("sha256:")
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise NotAvailable(f"{type(e).__name__}: {first_line(e)}") from None
    finally:
        temporary.unlink(missing_ok=True)


def check_hash(path: Path, sha256: str, shown: str) -> str:
    """The SHA-256 of a file of the project. Raises HashMismatch if another one is expected."""
    found = sha256_file(path).removeprefix("sha256:")
    if sha256 and found != sha256:
        raise HashMismatch(
            f"{shown} has the sha256 {found}, not {sha256}", "restore the file, or lock again: builder lock"
        )
    return found


def unpack_archive(path: Path, filename: str, folder: Path) -> None:
    """Unpacks an archive into a new folder.

    Args:
        path: the archive.
        filename: its name, which tells the format.
        folder: where.

    Raises:
        FetchError: it is damaged, a member leads out of the folder, or it is too large.
        SpaceError: the disk is full.
    """
    target = Target(folder, filename, most_unpacked(path.stat().st_size))
    try:
        if filename.endswith(".zip"):
            _unpack_zip(path, target)
        else:
            _unpack_tar(path, target)
    except _DAMAGED as e:
        raise FetchError(
            f"{filename}: a damaged archive: {str(e) or type(e).__name__}",
            "fetch it again, or name another one",
        ) from None
    target.finish()


def _unpack_tar(path: Path, target: Target) -> None:
    with path.open("rb") as start:
        is_xz = start.read(len(_XZ_MAGIC)) == _XZ_MAGIC
    file = io.BufferedReader(XzFile(path)) if is_xz else path.open("rb")
    # "|" reads the stream once: the limits hold before the rest is inflated
    with file, tarfile.open(fileobj=file, mode="r|" if is_xz else "r|*", tarinfo=_Header) as tar:
        for member in _members(tar):
            name = _clean(member.name)
            if not name:
                continue
            if member.isdir():
                target.add_folder(name)
            elif member.issym():
                target.add_link(name, member.linkname)
            elif member.islnk():
                target.add_copy(name, _clean(member.linkname))
            elif member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                target.add_file(name, member.size, content, executable=bool(member.mode & 0o100))
            else:
                raise FetchError(
                    f"{target.name}: {name!r} is a device or a pipe", "the archive is hostile: do not use it"
                )


class _Header(tarfile.TarInfo):
    """A header whose extensions have a limit: tarfile reads them into memory, whatever size they state."""

    _EXTENSIONS = (
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    )

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in self._EXTENSIONS and self.size > MAX_EXTENDED:
            raise ValueError(f"a tar header of {self.size} bytes")
        if sum(len(key) + len(value) for key, value in tar.pax_headers.items()) > MAX_EXTENDED:
            raise ValueError("too large headers")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        if found.size < 0:
            raise ValueError("a negative size")
        return found

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """Return the next header. Raises ValueError if it is damaged: tarfile would end the archive there."""
        try:
            return super().fromtarfile(tar)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as e:  # type: ignore[attr-defined]
            raise ValueError(str(e)) from None

    def _refuse_sparse(self, *_: object) -> tarfile.TarInfo:
        raise ValueError("a sparse file")  # its map is read into memory too

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members, without tarfile's own list of them, which grows without bound."""
    number = 0
    while (member := tar.next()) is not None:
        number += 1
        if number > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} members")
        tar.members = []  # type: ignore[attr-defined]
        yield member


def _unpack_zip(path: Path, target: Target) -> None:
    with ZipSource(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            check_method(member)
            name = _clean(member.filename.replace("\\", "/"))
            mode = member.external_attr >> 16
            if not name:
                continue
            if member.is_dir():
                target.add_folder(name)
                continue
            with archive.open(member) as content:
                if stat.S_ISLNK(mode):
                    if member.file_size > MAX_PATH:
                        raise ValueError(f"the symlink {name!r} is too long")
                    target.add_link(name, content.read(MAX_PATH).decode("utf-8", "surrogateescape"))
                else:
                    target.add_file(name, member.file_size, content, executable=bool(mode & 0o100))


def _clean(name: str) -> str:
    """A member's path without ``./`` at the beginning and ``/`` at the end; empty for the root."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    name = name.rstrip("/")
    return "" if name == "." else name
