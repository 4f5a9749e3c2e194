"""Makes and renews the Debian channel.

The channel has conda's python 3.11 with the libraries that it needs, pip, setuptools and wheel, under the
names of conda-forge: enough to lock and build where no conda channel can be reached. The packages come from
this machine's Debian mirror and are verified by apt; no root is needed. Each platform has a channel of its
own. None of the packages is run, so any machine can make each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from builder.channel.contents import FORMAT
from builder.channel.packages import write_packages
from builder.errors import FetchError
from builder.progress import QUIET, Reporter, working
from builder.settings import Settings
from builder.store.blobs import Store
from builder.store.files import space_errors
from builder.store.folders import CacheFolders
from builder.store.leftovers import remove_left_behind
from builder.store.temporary import temporary_beside

#: A file of complete channels. It contains the format; its time is when the channel was made.
_MARKER = ".complete"
_DAY_S = 86400


def debian_channel(
    settings: Settings, reporter: Reporter = QUIET, *, platform: str = "linux-64", refresh: bool = False
) -> Path:
    """The channel in the cache, made if it does not exist; see :func:`make_debian_channel`."""
    folder = channel_folder(settings, platform)
    return make_debian_channel(folder, settings, reporter, platform=platform, refresh=refresh)


def current_channel(settings: Settings, reporter: Reporter = QUIET, *, platform: str = "linux-64") -> Path:
    """The channel of a platform in the cache for locking: renewed if it is older than a day.

    If the mirror does not answer then, the older channel is used, with a warning.

    Raises:
        FetchError, SpaceError: see :func:`make_debian_channel`.
    """
    made = _made(channel_folder(settings, platform))
    if made is None or settings.offline or time.time() - made / 1e9 < _DAY_S:
        return debian_channel(settings, reporter, platform=platform)
    try:
        return debian_channel(settings, reporter, platform=platform, refresh=True)
    except FetchError as e:
        age = round((time.time() - made / 1e9) / _DAY_S)
        reporter.warn(f"{e.message}: using the Debian channel of {age} days ago")
        return debian_channel(settings, reporter, platform=platform)


def make_debian_channel(
    folder: Path,
    settings: Settings,
    reporter: Reporter = QUIET,
    *,
    platform: str = "linux-64",
    refresh: bool = False,
) -> Path:
    """Makes the channel in ``folder`` (takes some seconds). Does nothing if it is complete already.

    The same Debian packages become the same files, byte for byte. Several processes may call this at the
    same time. A run that was killed leaves no incomplete channel.

    Args:
        folder: where the channel is, or will be.
        settings: the cache (for a lock), and whether to work offline.
        reporter: receives a note when the channel is made.
        platform: whose packages it has; this machine's processor does not matter.
        refresh: read the mirror again, and add the packages that it has now. Older packages stay, for older
            locks.

    Returns:
        ``folder``.

    Raises:
        FetchError: apt, dpkg or patchelf is missing, or no mirror has the packages, or builder is offline,
            or ``folder`` contains something else.
        SpaceError: the disk is full, or ``folder`` cannot be written to.
    """
    before = _made(folder)
    if before is not None and not refresh:
        return folder
    with space_errors(folder.parent), Store(settings.cache).lock(f"channel {folder.absolute()}"):
        now = _made(folder)
        if now is not None and now != before:  # another process made it meanwhile
            return folder
        _check(folder, settings, exists=before is not None)
        kind = "" if platform == "linux-64" else f" for {platform}"
        with working(reporter, f"making the Debian channel{kind} from Debian's python3.11 packages"):
            _make(folder, platform)
    return folder


def channel_folder(settings: Settings, platform: str = "linux-64") -> Path:
    """Where the channel of a platform is in the cache."""
    name = "debian" if platform == "linux-64" else f"debian-{platform}"
    return CacheFolders(settings.cache).channels / name


def _made(folder: Path) -> int | None:
    """When a complete channel of this format was made in a folder (nanoseconds since 1970), or None."""
    marker = folder / _MARKER
    try:
        return marker.stat().st_mtime_ns if marker.read_text().strip() == str(FORMAT) else None
    except OSError:
        return None


def _check(folder: Path, settings: Settings, *, exists: bool) -> None:
    """Raises FetchError if the channel cannot be made in this folder on this machine."""
    if folder.exists() and not _is_ours(folder):
        raise FetchError(f"{folder} is not a Debian channel", "name a new or an empty folder")
    if settings.offline:
        state = "cannot be renewed" if exists else "does not exist yet"
        raise FetchError(
            f"the Debian channel in {folder} {state}, and builder is offline",
            "make it once online, or copy the folder from another machine (docs/offline.md)",
        )
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise FetchError(
                f"no {tool} on this machine: the Debian channel is made from Debian packages",
                "make it on a Debian machine and copy the folder (docs/offline.md)",
            )


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty, or a channel that builder made."""
    if not folder.is_dir():
        return False
    return (folder / _MARKER).exists() or not any(folder.iterdir())


def _make(folder: Path, platform: str) -> None:
    """Makes a new channel beside ``folder``, adds the old packages, and renames it to ``folder``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_left_behind(folder.parent)
    work = temporary_beside(folder)
    work.mkdir()
    try:
        made = work / "channel"
        write_packages(made, work, platform)
        for old in folder.glob("*/*.conda"):
            target = made / old.parent.name / old.name
            if not target.exists():
                shutil.copy2(old, target)
        _index(made, (platform, "noarch"))
        (made / _MARKER).write_text(f"{FORMAT}\n")
        _replace(folder, made, work / "before")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(folder: Path, made: Path, before: Path) -> None:
    """Renames a complete channel to ``folder``, and the one there to ``before``.

    Where locks do not work, another process may have made the channel meanwhile: then that one stays.
    """
    with contextlib.suppress(FileNotFoundError):
        folder.rename(before)
    try:
        made.rename(folder)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST) or _made(folder) is None:
            raise


def _index(channel: Path, subdirs: Sequence[str]) -> None:
    """Writes the channel's ``repodata.json``, without the time of indexing, which rattler adds to each
    record.
    """
    from rattler.index import index_fs

    for subdir in subdirs:
        (channel / subdir).mkdir(exist_ok=True)
    asyncio.run(index_fs(channel, write_zst=False, write_shards=False, force=True))
    for subdir in subdirs:
        path = channel / subdir / "repodata.json"
        index = json.loads(path.read_bytes())
        for record in index["packages.conda"].values():
            record.pop("indexed_timestamp", None)
        path.write_text(json.dumps(index, sort_keys=True, indent=1) + "\n")
