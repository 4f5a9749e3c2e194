"""Unpacks a commit from git's objects, with its submodules.

Nothing is checked out, so no filter, attribute or hook of the repository has an effect, and the
files are those of the commit byte for byte. The commit pins everything: a submodule is an entry of
its tree that names the submodule's commit.
"""

from __future__ import annotations

import posixpath
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from urllib.parse import urlsplit

from builder.core.errors import FetchError
from builder.core.git import Git, GitError, stop
from builder.core.redact import redact
from builder.core.store.files import pieces
from builder.lock.sourcerecords import GIT_HASH

from .bounds import MAX_PATH, MAX_SUBMODULE_LEVELS, MAX_SUBMODULES
from .repository import Repository
from .target import Target

_FILE, _PROGRAM, _LINK, _SUBMODULE = "100644", "100755", "120000", "160000"
#: Modes of files that old versions of git wrote.
_FILES = (_FILE, _PROGRAM, "100664", "100600")
#: The beginning of a file that stands for one in a store of Git LFS; such a file is small.
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES = 1024
_MAX_GITMODULES = 1 << 20

#: Opens the repository of a URL.
Opener = Callable[[str], AbstractContextManager[Repository]]
#: Sections of .gitmodules, by names or by paths: the values by their keys.
_Sections = dict[str, dict[str, str]]


@dataclass(slots=True)
class _TreeEntry:
    mode: str
    digest: str
    path: str


@dataclass(frozen=True, slots=True)
class _Part:
    """A repository or submodule that is to be unpacked."""

    url: str
    commit: str
    prefix: str = ""
    """The path in the target, with a slash at the end; empty: its root."""
    level: int = 0
    """How many repositories it is a submodule of."""


@dataclass(slots=True)
class Unpacker:
    """Unpacks a commit into a target."""

    target: Target
    opener: Opener
    submodules: int = 0

    def unpack(self, url: str, commit: str) -> None:
        """Unpack a commit and its submodules.

        Args:
            url: the repository's URL, to which URLs of submodules may be relative.
            commit: the whole hash.

        Raises:
            FetchError: the tree is hostile or too large, or a submodule is not available.
        """
        pending = [_Part(url, commit)]
        while pending:
            part = pending.pop(0)
            # one repository at a time: the lock of each is released before that of its submodules is taken
            with self.opener(part.url) as repository:
                repository.require(part.commit)
                try:
                    pending += self._unpack_part(repository, part)
                except GitError as e:
                    raise FetchError(
                        f"{repository.shown}: {part.commit[:12]} cannot be read: {e}",
                        "run it again",
                    ) from None

    def _unpack_entry(self, entry: _TreeEntry, prefix: str, blobs: _Blobs) -> None:
        _check_name(entry.path, self.target.name)
        path = prefix + entry.path
        size, content = blobs.open(entry.digest)
        if entry.mode == _LINK:
            if size > MAX_PATH:
                hint = "do not use it"
                raise FetchError(f"{self.target.name}: the symlink {path!r} is too long", hint)
            text = b"".join(content)
            self.target.add_link(path, text.decode("utf-8", "surrogateescape"))
        elif entry.mode in _FILES:
            if size <= _LFS_BYTES:
                data = b"".join(content)
                content = iter((data,))
                if data.startswith(_LFS):
                    raise FetchError(
                        f"{self.target.name}: {path} is in a store of Git LFS, which builder does not read",
                        "clone it into the project with git-lfs (git clone, git lfs pull), "
                        "and name the folder: ./FOLDER",
                    )
            self.target.add_file(path, size, content, executable=entry.mode == _PROGRAM)
        else:
            raise FetchError(
                f"{self.target.name}: {path!r} has the unknown mode {entry.mode}",
                "the repository is damaged",
            )
        blobs.close()

    def _unpack_part(self, repository: Repository, part: _Part) -> list[_Part]:
        """Unpack the files of one repository and return its submodules."""
        submodules = []
        with _Blobs(repository.git) as blobs:
            for entry in _entries(repository.git, part.commit):
                if entry.mode == _SUBMODULE:
                    _check_name(entry.path, self.target.name)
                    self.target.add_folder(part.prefix + entry.path)
                    submodules.append(entry)
                else:
                    self._unpack_entry(entry, part.prefix, blobs)
        if not submodules:
            return []
        places = _gitmodules(repository, part.commit)
        found = [self._submodule(entry, places, repository, part) for entry in submodules]
        return [submodule for submodule in found if submodule is not None]

    def _submodule(
        self, entry: _TreeEntry, places: _Sections, parent: Repository, part: _Part
    ) -> _Part | None:
        """Return a submodule that is to be unpacked; None for one that .gitmodules excludes."""
        path = part.prefix + entry.path
        place = places.get(entry.path)
        if place is None or not GIT_HASH.fullmatch(entry.digest):
            raise FetchError(
                f"{parent.shown}: .gitmodules has no URL for the submodule {path}",
                "ask the authors of the repository, or name another commit",
            )
        if place.get("update") == "none":
            return None
        self.submodules += 1
        if self.submodules > MAX_SUBMODULES or part.level >= MAX_SUBMODULE_LEVELS:
            raise FetchError(
                f"{self.target.name}: more than {MAX_SUBMODULES} submodules or {MAX_SUBMODULE_LEVELS} levels",
                "the repository is damaged or hostile: do not use it",
            )
        url = submodule_url(part.url, place["url"], f"{parent.shown}: submodule {path}")
        return _Part(url, entry.digest, path + "/", part.level + 1)


def _check_name(path: str, shown: str) -> None:
    """Raise FetchError for a name that git does not write: ``.git`` in any case."""
    if any(part.lower().rstrip(". ") == ".git" for part in path.split("/")):
        hint = "the repository is hostile: do not use it"
        raise FetchError(f"{shown}: {path!r} is a path of git itself", hint)


def _entries(git: Git, commit: str) -> Iterator[_TreeEntry]:
    """Yield the files of a commit while git lists them: twelve objects may have 10^10 paths."""
    for record in git.records("ls-tree", "-r", "-z", "--full-tree", commit):
        about, _, path = record.partition("\t")
        mode, _, digest = about.split()
        yield _TreeEntry(mode, digest, path)


# submodules -------------------------------------------------------------------------------------------------


def _gitmodules(repository: Repository, commit: str) -> _Sections:
    """Return the sections of .gitmodules for submodules with a URL, by path."""
    try:
        size = int(repository.git.text("cat-file", "-s", f"{commit}:.gitmodules"))
        if size > _MAX_GITMODULES:
            raise GitError("it is too large")
        text = repository.git.text("config", "--blob", f"{commit}:.gitmodules", "-z", "--list")
    except GitError as e:
        hint = "name another commit"
        raise FetchError(f"{repository.shown}: .gitmodules cannot be read: {e}", hint) from None
    sections: _Sections = {}
    for item in text.split("\0"):
        key, _, value = item.partition("\n")
        kind, _, rest = key.partition(".")
        name, _, field_name = rest.rpartition(".")
        if kind == "submodule":
            sections.setdefault(name, {})[field_name] = value
    places = [place for place in sections.values() if place.get("path") and place.get("url")]
    return {posixpath.normpath(place["path"]): place for place in places}


def submodule_url(parent: str, url: str, where: str) -> str:
    """Return the URL of a submodule; ``./`` and ``../`` are relative to the repository above it.

    Raises:
        FetchError: it is not one, or names a file although the repository above it is on the web.
    """
    try:
        url = _absolute(parent, url)
        host = urlsplit(url).netloc
    except ValueError:
        host = "-"
    scheme = url.partition("://")[0]
    is_outside = scheme == "file" and not parent.startswith("file:")
    if is_outside or scheme not in ("https", "http", "ssh", "git", "file"):
        hint = "a submodule has to be on the web as its repository is"
        raise FetchError(f"{where}: {redact(url)} is not an address that is fetched", hint)
    if host.startswith("-"):
        hint = "the repository is hostile: do not use it"
        raise FetchError(f"{where}: {redact(url)} is no URL", hint)
    return url


def _absolute(parent: str, url: str) -> str:
    """Return a submodule's URL with its transport. Raises ValueError if it is not valid."""
    if url.startswith(("./", "../")):
        base = urlsplit(parent)
        return base._replace(path=posixpath.normpath(posixpath.join(base.path, url))).geturl()
    if "://" not in url and "::" not in url and ":" in url and "/" not in url.partition(":")[0]:
        host, _, path = url.partition(":")  # git@HOST:PATH
        return f"ssh://{host}/{path.lstrip('/')}"
    return f"file://{url}" if url.startswith("/") else url


# objects ----------------------------------------------------------------------------------------------------


class _Blobs:
    """Reads the content of objects, with one process of git for all of them."""

    def __init__(self, git: Git) -> None:
        self._git = git

    def __enter__(self) -> _Blobs:
        self._process: subprocess.Popen[bytes] = self._git.start("cat-file", "--batch")
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    def open(self, digest: str) -> tuple[int, Iterator[bytes]]:
        """Return an object's size in bytes, and its content, to be read before :meth:`close`."""
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        sink.write(f"{digest}\n".encode())
        sink.flush()
        words = source.readline().split()
        if len(words) != 3 or words[1] != b"blob":
            raise GitError(f"object {digest} is missing")
        return int(words[2]), pieces(source, int(words[2]))

    def close(self) -> None:
        """End reading an object, whose content was read."""
        source = self._process.stdout
        assert source is not None
        if source.read(1) != b"\n":
            raise GitError("an object was not read whole")
