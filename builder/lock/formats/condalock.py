"""conda-lock's files, read by conda-lock itself: categories, git packages, and all versions of the format.

builder's own reader (:mod:`builder.lock.file`) is for the files that builder writes. It reads most files of
conda-lock too, in a tenth of the time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder.errors import LockError
from builder.lock.formats.common import RESTORE, PackageMaker, choices, read_yaml
from builder.lock.formats.foreign import ForeignLock, ForeignSource
from builder.model import MAIN, LockedPackage

#: Versions of the format that conda-lock 4 reads.
VERSIONS = (1, 2)
_GIT = re.compile(r"git\+(?P<url>.+?)@(?P<commit>[0-9a-f]{40})(#(?P<fragment>.*))?")


def read_condalock(path: Path, platform: str, groups: Sequence[str]) -> ForeignLock:
    """The packages of one platform: those of the chosen categories, and whatever these depend on.

    conda-lock gives a package the category of the first thing that needs it, so a dependency of ``main`` may
    carry ``dev``. Entries for other platforms are not looked at.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if conda-lock is not installed.
    """
    data = _loaded(path)
    metadata = data.get("metadata")
    platforms = _texts(metadata.get("platforms") if isinstance(metadata, dict) else None)
    packages = data.get("package")
    if not isinstance(packages, list):
        raise LockError(f"{path}: package: must be a list", RESTORE)
    chosen = [item for item in packages if isinstance(item, dict) and item.get("platform") == platform]
    chosen = [item for item in chosen if not str(item.get("name")).startswith("__")]
    if not chosen:
        raise LockError(
            f"{path}: the lock has no packages for {platform}",
            f"lock again for this platform: conda-lock lock -p {platform}; metadata.platforms has "
            f"{', '.join(platforms) or 'none'}",
        )
    locked = _by_conda_lock(path, {**data, "package": chosen})
    offered = sorted({category for item in locked.package for category in item.categories} | {MAIN})
    for group in groups:
        if group not in offered:
            raise LockError(f"{path}: there is no category {group!r}", choices(group, offered))
    wanted = _needed(locked.package, set(groups) or {MAIN})
    reader = _Reader(path, platform)
    return ForeignLock(
        "conda-lock",
        path,
        packages=tuple(reader.package(item) for item in wanted if not _is_source(item)),
        sources=tuple(reader.source(item) for item in wanted if _is_source(item)),
        platforms=platforms,
        channels=tuple(channel.url for channel in locked.metadata.channels),
        groups=tuple(offered),
        left_out=tuple(name for name in offered if name not in (groups or (MAIN,))),
    )


def as_version_1(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a lock file of any version as conda-lock writes it today (version 1).

    Raises:
        LockError: conda-lock refuses the file, or is not installed.
    """
    written: dict[str, Any] = _by_conda_lock(path, data).to_v1().dict_for_output()
    return written


def _loaded(path: Path) -> dict[str, Any]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise LockError(f"{path}: not a lock file of conda-lock", RESTORE)
    return data


def _by_conda_lock(path: Path, data: Mapping[str, Any]) -> Any:
    """conda-lock's own ``Lockfile`` for the data of a file."""
    version = data.get("version")
    if version not in VERSIONS or isinstance(version, bool):
        raise LockError(
            f"{path}: version {str(version)[:40]!r} of conda-lock's format; known are 1 and 2",
            "update builder, or lock with conda-lock 1 to 4",
        )
    try:
        from conda_lock.lockfile import lockfile_v1_to_v2
        from conda_lock.lockfile.v1.models import Lockfile as Lockfile1
        from conda_lock.lockfile.v2prelim.models import Lockfile as Lockfile2
    except ImportError:
        raise LockError(
            f"{path}: only conda-lock reads this file, and it is not installed",
            "install it beside builder: pip install 'conda-lock>=4,<5'",
        ) from None
    content = {key: value for key, value in data.items() if key != "version"}
    try:
        if version == 1:
            locked = lockfile_v1_to_v2(Lockfile1.model_validate(content))
        else:
            locked = Lockfile2.model_validate(content)
        locked.filter_virtual_packages_inplace()
        locked.toposort_inplace()
    except Exception as e:  # conda-lock checks with pydantic and assertions (a package that is listed twice)
        reason = re.sub(r"\s*For further information visit \S+", ";", str(e)).strip().strip(";")
        reason = " ".join(reason.split()) or "a package is listed twice with one category"
        raise LockError(f"{path}: conda-lock refuses this file: {reason[:500]}", RESTORE) from None
    return locked


def _needed(packages: Sequence[Any], categories: Collection[str]) -> list[Any]:
    """The packages of the categories, and all that they depend on, in the order of the file."""
    by_name = {(item.manager, _name(item.manager, item.name)): item for item in packages}
    todo = [key for key, item in by_name.items() if item.categories & set(categories)]
    found = set(todo)
    while todo:
        item = by_name[todo.pop()]
        keys = ((manager, _name(manager, name)) for name in item.dependencies for manager in ("conda", "pip"))
        for key in keys:
            if key in by_name and key not in found and (key[0] == item.manager or item.manager == "pip"):
                found.add(key)
                todo.append(key)
    return [item for key, item in by_name.items() if key in found]


def _name(manager: str, name: str) -> str:
    return canonicalize_name(name) if manager == "pip" else name


def _is_source(item: Any) -> bool:
    """Whether a package has to be built: a git repository, or an archive that is no wheel."""
    if item.manager == "conda":
        return False
    return item.url.startswith("git+") or not item.url.partition("#")[0].endswith(".whl")


def _texts(value: object) -> tuple[str, ...]:
    items: Iterable[object] = value if isinstance(value, list) else ()
    return tuple(str(item) for item in items)


class _Reader:
    """Turns conda-lock's packages into builder's."""

    def __init__(self, path: Path, platform: str) -> None:
        self._path = path
        self._maker = PackageMaker(path, platform)

    def package(self, item: Any) -> LockedPackage:
        if not item.hash.sha256 and not item.hash.md5:
            raise self._maker.no_hash(item.name, item.url)
        return self._maker.make(
            item.manager,
            item.name,
            item.version,
            item.url,
            sha256=item.hash.sha256,
            md5=item.hash.md5,
            dependencies=item.dependencies,
        )

    def source(self, item: Any) -> ForeignSource:
        here = str(self._path)
        if item.url.startswith("git+"):
            match = _GIT.fullmatch(item.url)
            if match is None:
                raise self._maker.error(f"package {item.name}: its git URL has no commit: {item.url[:200]!r}")
            subdirectory = re.search(r"subdirectory=([^&]+)", match["fragment"] or "")
            return ForeignSource(
                "git",
                item.name,
                item.version,
                match["url"],
                revision=match["commit"],
                subdirectory=subdirectory[1] if subdirectory else "",
                where=here,
            )
        url = item.url.partition("#")[0]
        return ForeignSource("sdist", item.name, item.version, url, sha256=item.hash.sha256 or "", where=here)
