"""A small conda channel made from Debian's python3.11 packages, where conda-forge does not answer.

It has python 3.11 with the libraries that it needs, pip, setuptools and wheel, under the names of
conda-forge, and takes its place as a mirror. apt verifies the packages, none of them is run, and no root is
needed. ``python -m tests.support.debian_channel FOLDER`` makes it and prints the line for BUILDER_MIRRORS;
it prints nothing where conda-forge answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import httpx2
from filelock import FileLock

from builder.core.store.temporary import temporary_beside
from builder.formats.net.http import make_client
from tests.support.debian_channel.packages import write_packages

CONDA_FORGE = "https://conda.anaconda.org/conda-forge"
#: Where tests and ``make image`` have it.
CHANNEL_FOLDER = Path(__file__).parents[3] / ".cache" / "channel"
#: Seconds within which conda-forge has to answer.
_PROBE_TIMEOUT = 5.0


def channel_mirrors(folder: Path) -> str:
    """Return the value of BUILDER_MIRRORS for this machine, with the channel made in a folder if needed.

    A value that the user has set stays; it is empty where conda-forge answers.
    """
    if given := os.environ.get("BUILDER_MIRRORS", ""):
        return given
    return "" if _answers() else mirror_line(make_debian_channel(folder))


def mirror_line(folder: Path, name: str = "conda-forge") -> str:
    """Return the pair of BUILDER_MIRRORS by which a folder takes the place of a public channel."""
    return f"https://conda.anaconda.org/{name}={folder.absolute()}"


def make_debian_channel(folder: Path, platform: str = "linux-64") -> Path:
    """Make the channel in a folder, unless it is there; return the folder.

    Raises:
        FetchError: a tool is missing, no mirror answers, or Debian's packages are not as expected.
    """
    folder = folder.absolute()  # apt puts its root folder before a relative path
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _make(folder, platform)
    return folder


def _make(folder: Path, platform: str) -> None:
    work = temporary_beside(folder)
    work.mkdir()
    try:
        write_packages(work / "channel", work, platform)
        _index(work / "channel", platform)
        (work / "channel").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _index(channel: Path, platform: str) -> None:
    """Write ``repodata.json``, without the time of indexing, which a date of a recipe would compare."""
    from rattler.index import index_fs

    for subdir in (platform, "noarch"):
        (channel / subdir).mkdir(exist_ok=True)
    asyncio.run(index_fs(channel, write_zst=False, write_shards=False, force=True))
    for path in channel.glob("*/repodata.json"):
        index = json.loads(path.read_bytes())
        for record in index["packages.conda"].values():
            record.pop("indexed_timestamp", None)
        path.write_text(json.dumps(index, sort_keys=True, indent=1) + "\n")


def _answers() -> bool:
    url = f"{CONDA_FORGE}/noarch/repodata.json.zst"
    try:
        with make_client(1, timeout=_PROBE_TIMEOUT) as client:
            return client.head(url).is_success
    except httpx2.HTTPError:
        return False
