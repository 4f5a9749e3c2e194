"""Recognises a command that would do what it did last time: all that it read then is the same.

While the command runs, an audit hook of Python receives the names of the files and folders that it
opens. Each gets a *print* before it is opened. The prints are taken once more at the end, and are
stored under the words of the command::

    content /p/recipes/cpu.yaml      mode and SHA-256
    content /p/recipes               names, which are folders, targets of symlinks
    content /p/.builderignore        missing
    looks /p/dist/blobs/sha256/9c34  mode, owner, size, inode, modification time
    looks /p/.git                    of a folder: mode and owner

The next command with the same words, environment and code takes these prints again. Nothing is
stored for a command that renamed or removed a file, started a program or opened a connection, nor
for one that read what has changed meanwhile.

No event shows what is only asked for with ``stat``. So the folders of the project above each file
count, which have the names of all others, and modules report the rest with :func:`look`. A test
compares a record with all calls of ``stat``. The cache is left out: no result depends on it.
"""

# ruff: noqa: PTH100, PTH109, PTH115, PTH116, PTH120, PTH123

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.core.datafiles import read_beside
from builder.core.errors import BuilderError
from builder.core.settings import Settings
from builder.core.version import __version__

from .folders import CacheFolders
from .records import read_record, write_record
from .temporary import SHARED_FOLDERS

log = logging.getLogger(__name__)

#: The version of the records.
_FORMAT = 1
#: In bytes; a larger file is the same as long as its times are.
_HASHED = 1 << 20
#: A file that is younger when the command starts may be changed and have the same times.
_YOUNG_NS = 2_000_000_000
#: Variables of a terminal's session, which builder does not read.
_SESSION = read_beside(__file__, "session_variables.txt").split()
#: Flags of files that are written or locked, and of folders, whose names another event tells.
_NOT_READ = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_DIRECTORY
_LISTS = ("os.listdir", "os.scandir")
#: What a command learns from elsewhere has no print.
_ELSEWHERE = read_beside(__file__, "elsewhere_events.txt").split()
_EVENTS = frozenset(("open", "os.remove", "os.rename", *_LISTS, *_ELSEWHERE))


def _content(path: str) -> str:
    info = os.stat(path)
    if stat.S_ISDIR(info.st_mode):
        with os.scandir(path) as entries:
            data = os.fsencode("\0".join(sorted(map(_entry, entries))))
    elif stat.S_ISREG(info.st_mode) and info.st_size <= _HASHED:
        with open(path, "rb") as file:
            data = file.read()
    else:
        return f"{_looks(info)} {info.st_ctime_ns}"
    return f"{info.st_mode:o} {hashlib.sha256(data).hexdigest()}"


def _entry(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"{entry.name} -> {os.readlink(entry.path)}"
    return f"{entry.name}{'/' * entry.is_dir()}"


def _looks(info: os.stat_result) -> str:
    kind = f"{info.st_mode:o} {info.st_uid}"
    if stat.S_ISDIR(info.st_mode):
        return kind
    return f"{kind} {info.st_size} {info.st_ino} {info.st_mtime_ns}"


def _path_of(event: str, args: tuple[Any, ...]) -> str | None:
    """Return the path that an audit event reads, or renames to; None if there is none."""
    if event in _ELSEWHERE or (event == "open" and args[2] & _NOT_READ):
        return None
    if event == "os.remove" and args[1] != -1:  # in a tree that is removed
        return None
    path = args[1 if event == "os.rename" else 0]
    if isinstance(path, int):
        return None
    return os.path.abspath(os.fsdecode("." if path is None else path))


def _print(key: str) -> str:
    """Return the print of ``KIND PATH``."""
    kind, _, path = key.partition(" ")
    try:
        return _content(path) if kind == "content" else _looks(os.lstat(path))
    except OSError as e:
        return f"missing: {e.errno}"


class Recording:
    """The record of one command.

    Args:
        settings: of the command.
        root: the project folder.
        words: the command and its options.
    """

    def __init__(self, settings: Settings, root: Path, words: str) -> None:
        folders = CacheFolders(settings.cache)
        self._cache, self._smoke = f"{settings.cache}/", f"{folders.smoke}/"
        self._roots = (f"{root}/", f"{root.resolve()}/")
        self._swept = {str(folder) for folder in (*SHARED_FOLDERS, settings.tmpdir)}
        self._path = folders.unchanged / f"{_hash(_FORMAT, os.getcwd(), root, words)[:32]}.json"
        self._machine = _machine()
        self._prints: dict[str, str] = {}
        self._began = time.time_ns()
        self._problem = f"{root} is in the cache" if str(root).startswith(self._cache) else ""
        self.may_ask = False
        """Whether programs and connections do not matter now."""

    def find(self) -> Any:
        """Return what was stored for the command, if all that it read is the same; else None."""
        found = read_record(self._path)
        if found is None or found["machine"] != self._machine:
            return None
        for key, known in found["prints"].items():
            if _print(key) != known:
                log.info("not as the last time: %s", key)
                return None
        return found["value"]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Note what is read in the context. Only the first command of a process is recorded."""
        global _active, _is_used
        if _is_used:
            self.give_up("another command of this process may have read files for it")
        else:
            sys.addaudithook(_hook)
        _is_used, _active = True, self
        try:
            _guarded(Recording.note, "content", self._roots[0])
            yield
        finally:
            _active = None

    def store(self, value: Any) -> None:
        """Store what :meth:`find` is to return, unless the next command may do something else."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "builder" and getattr(module, "__file__", None):
                self._prints.setdefault(key := f"looks {module.__file__}", _print(key))
        changed = (key for key, known in self._prints.items() if _print(key) != known)
        if key := next(changed, "") or next(filter(self._is_young, self._prints), ""):
            self.give_up(f"{key} has changed")
        if self._problem:
            log.info("the next command does everything again: %s", self._problem)
            return
        record = {"machine": self._machine, "prints": self._prints, "value": value}
        # a cache that is read-only, or a text that is not UTF-8
        with contextlib.suppress(BuilderError, OSError, ValueError):
            write_record(self._path, record, 0o600)

    def give_up(self, problem: str) -> None:
        """Store nothing for this command."""
        self._problem = self._problem or problem

    def notice(self, event: str, args: tuple[Any, ...]) -> None:
        """Note the path of an audit event."""
        if event in _ELSEWHERE and not self.may_ask:
            self.give_up(f"{event} {args[0]}")
        path = _path_of(event, args)
        is_swept = event in _LISTS and path in self._swept
        if path is None or is_swept or self._is_import(event, path):
            return
        self.note("content", path)
        if event == "os.rename" and not self._is_left_out(path):
            self.give_up(f"{path} was written")

    def note(self, kind: str, path: str) -> None:
        """Take the print of a path; for a content, also of the project's folders above it."""
        name = os.path.abspath(path)
        if self._is_left_out(name):
            return
        now = _print(key := f"{kind} {name}")
        if self._prints.setdefault(key, now) != now:
            self.give_up(f"{name} has changed")
        folder = os.path.dirname(name) if kind == "content" else ""
        while f"{folder}/".startswith(self._roots):
            if (key := f"content {folder}") not in self._prints:
                self._prints[key] = _print(key)
            folder = os.path.dirname(folder)

    def _is_import(self, event: str, name: str) -> bool:
        """Return whether Python's import opens a file or a folder that is not the project's."""
        if event in _LISTS:
            return name in sys.path_importer_cache and not f"{name}/".startswith(self._roots)
        is_compiled = "/__pycache__/" in name or name.startswith(f"{sys.pycache_prefix}/")
        return is_compiled and name.endswith(".pyc")

    def _is_left_out(self, name: str) -> bool:
        if name.startswith(self._cache):
            return not name.startswith(self._smoke)
        return name == os.devnull or (name.startswith("/proc/") and "/fd/" not in name)

    def _is_young(self, key: str) -> bool:
        """Return whether a file may have changed in a way that its print does not show."""
        kind, _, path = key.partition(" ")
        try:
            info = os.stat(path)
        except OSError:
            return False
        is_large = stat.S_ISREG(info.st_mode) and info.st_size > _HASHED
        is_by_times = is_large if kind == "content" else path.endswith(".py")
        return is_by_times and info.st_ctime_ns > self._began - _YOUNG_NS


_active: Recording | None = None
_is_used = False
#: Whether this thread takes a print, which opens files itself (``is_set``).
_inside = threading.local()


def _guarded(do: Callable[..., None], *args: Any) -> None:
    """Call a method of the running command's recording; an error is not the command's."""
    recording = _active
    if recording is None or getattr(_inside, "is_set", False):
        return
    _inside.is_set = True
    try:
        do(recording, *args)
    except Exception as e:
        recording.give_up(repr(e))
    finally:
        _inside.is_set = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _active is not None and event in _EVENTS:
        _guarded(Recording.notice, event, args)


def look(path: Path) -> Path:
    """Record that the command asks what is at a path, without reading it; return the path."""
    _guarded(Recording.note, "looks", str(path))
    return path


def give_up(problem: str) -> None:
    """Let the next command do everything again."""
    _guarded(Recording.give_up, problem)


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Let the command use programs and connections; the caller stores what it needs to ask again."""
    recording = _active
    if recording is not None:
        recording.may_ask = True
    try:
        yield
    finally:
        if recording is not None:
            recording.may_ask = False


def _machine() -> str:
    """Return a hash of what a command depends on besides files: user, day, environment."""
    mask = os.umask(0o077)
    os.umask(mask)
    user = (os.getuid(), os.getgid(), mask, [os.isatty(fd) for fd in (1, 2)])
    days = [time.strftime("%Y-%m-%d", now()) for now in (time.gmtime, time.localtime)]
    variables = sorted(item for item in os.environ.items() if item[0] not in _SESSION)
    return _hash(__version__, sys.version, sys.path, user, days, variables)


def _hash(*values: Any) -> str:
    return hashlib.sha256(ascii(values).encode()).hexdigest()
