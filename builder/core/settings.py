"""The settings of this machine: folders, threads, network."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from .errors import UsageError
from .redact import redact

#: The time stamp of files in layers unless SOURCE_DATE_EPOCH is set: 1980-01-01, the first day of zip.
DEFAULT_EPOCH = 315532800
#: The last second, in the year 2106, that a squashfs can hold as a time.
MAX_EPOCH = 2**32 - 1
#: Threads. More bring nothing, and each needs memory.
_MAX_JOBS = 1024


def expand_home(path: str | Path) -> Path:
    """Return the path with ``~`` and ``~NAME`` replaced by the home folder.

    Raises:
        UsageError: there is no such user, or this user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        problem = f"{path}: its home folder is not known"
        raise UsageError(problem, "set HOME, or write the whole path") from None


def home_folder() -> Path:
    """Return the home folder; one that does not exist where the host knows none for this user."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def user_name() -> str:
    """Return the name of this user; where the host has none, as in some containers, the number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def is_trusted(*paths: Path) -> bool:
    """Return whether files or folders belong to this user or root; symlinks and what they name.

    As for git's safe.directory, the user who called sudo counts for root. Others could change what
    they own at any time.

    Raises:
        OSError: one does not exist, or cannot be reached.
    """
    known = {"0", str(os.geteuid()), os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""}
    return all(str(info.st_uid) in known for p in paths for info in (p.lstat(), p.stat()))


def nearest_project(start: Path) -> Path | None:
    """Return the folder, or its nearest parent, that has a folder ``recipes/``, whoever owns it."""
    start = start.absolute()
    folders = (start, *start.parents) if start.is_dir() else ()
    return next((folder for folder in folders if (folder / "recipes").is_dir()), None)


def project_root(start: Path) -> Path | None:
    """Return the project of a folder: it or its nearest parent has a folder ``recipes/``.

    A parent that is another user's is no project: in a folder like /tmp, anybody can make one, and
    recipes name programs of this host.
    """
    found = nearest_project(start)
    if found is None or found == start.absolute() or is_trusted(found, found / "recipes"):
        return found
    return None


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved once by the command line, then passed down unchanged.

    Args:
        cache: the cache folder, see :mod:`builder.core.store.folders`.
        tmpdir: the folder of temporary files.
        jobs: the number of threads that work at once.
        offline: use the cache and local files only.
        mirrors: pairs of URL prefixes, see :mod:`builder.formats.net.mirrors`.
        epoch: the time stamp of files in layers, in seconds since 1970.
    """

    cache: Path
    tmpdir: Path
    jobs: int
    offline: bool = False
    mirrors: tuple[tuple[str, str], ...] = ()
    epoch: int = DEFAULT_EPOCH

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        cache: Path | None = None,
        tmpdir: Path | None = None,
    ) -> Settings:
        """Return the settings of this process; arguments take precedence over the environment.

        Raises:
            UsageError: a variable has an invalid value.
        """
        env = os.environ if environ is None else environ
        home = Path(env["HOME"]) if env.get("HOME") else Path("~")
        default = Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "builder"
        cache = cache or Path(env.get("BUILDER_CACHE") or default)
        cache = expand_home(cache).absolute()
        tmp = tmpdir or Path(env.get("BUILDER_TMPDIR") or cache / "tmp")
        return cls(
            cache=cache,
            tmpdir=expand_home(tmp).absolute(),
            jobs=_integer(env, "BUILDER_JOBS", len(os.sched_getaffinity(0)), 1, _MAX_JOBS),
            offline=env.get("BUILDER_OFFLINE", "") not in ("", "0"),
            mirrors=_mirrors(env.get("BUILDER_MIRRORS", "")),
            epoch=_integer(env, "SOURCE_DATE_EPOCH", DEFAULT_EPOCH, 0, MAX_EPOCH),
        )


def _integer(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= 20
    if not is_number or not least <= int(text) <= most:
        problem = f"{name}={text[:40]!r} must be a whole number from {least} to {most}"
        raise UsageError(problem, f"set {name} to a number, or unset it")
    return int(text)


def _mirrors(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in text.split():
        source, _, target = word.partition("=")
        is_pair = False
        with suppress(ValueError):  # "http://[" is no URL
            is_pair = bool(source and urlsplit(target).geturl())
        if not is_pair:
            hint = "write FROM=TO, both URL prefixes; TO may be a folder"
            raise UsageError(f"BUILDER_MIRRORS: {redact(word)!r} is not FROM=TO", hint)
        pairs.append((source, target))
    return tuple(pairs)


def seconds_of(text: str) -> int | None:
    """Return seconds since 1970; None for a text that is not a time from 1970 to 2106."""
    try:
        time = datetime.fromisoformat(text)
        seconds = int((time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp())
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds <= MAX_EPOCH else None
