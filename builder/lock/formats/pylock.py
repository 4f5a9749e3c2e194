"""``pylock.toml`` (PEP 751). The package ``packaging`` reads it and selects what a target
installs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)

from builder.config.merge import choices
from builder.errors import LockError
from builder.lock.formats.common import (
    RESTORE,
    PackageMaker,
    glibc_of,
    read_toml,
)
from builder.lock.formats.foreign import ForeignLock
from builder.lock.markers import marker_environment
from builder.lock.spec import SourceSpec
from builder.lock.wheels import wheel_tags
from builder.model import MAIN, LockedPackage

_Selected = PackageVcs | PackageDirectory | PackageArchive | PackageWheel | PackageSdist


def read_pylock(
    path: Path, platform: str, python: str, groups: Sequence[str], virtual: Mapping[str, str]
) -> ForeignLock:
    """Return the packages of a ``pylock.toml`` for one target.

    ``main`` stands for the file's default groups. Any other group is a dependency group or an
    extra.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    lock = parsed(path)
    defaults, named = list(lock.default_groups or []), list(lock.dependency_groups or [])
    extras = list(lock.extras or [])
    offered = sorted({MAIN, *named, *extras})
    for group in groups:
        if group not in offered and group not in defaults:
            raise LockError(
                f"{path}: there is no group or extra {group!r}", choices(group, offered)
            )
    chosen = [group for group in groups if group != MAIN]
    if not groups or MAIN in groups:
        chosen += defaults
    try:
        selected = list(
            lock.select(
                environment=marker_environment(platform, python),  # type: ignore[arg-type]
                tags=wheel_tags(platform, glibc_of(virtual), python),
                extras=[name for name in chosen if name in extras],
                dependency_groups=[name for name in chosen if name not in extras or name in named],
            )
        )
    except PylockSelectError as e:
        raise LockError(
            f"{path}: {e}",
            f"builder selects for Python {python} on {platform} with glibc 2.{glibc_of(virtual)}: choose "
            "another Python or base, or lock again for this target",
        ) from None
    except (ValueError, KeyError, RecursionError) as e:  # a marker that cannot be evaluated
        raise LockError(f"{path}: a marker cannot be evaluated: {e}", RESTORE) from None
    reader = _PylockReader(path, platform)
    return ForeignLock(
        "pylock",
        path,
        tuple(reader.read(*pair) for pair in selected),
        left_out=tuple(sorted({*named, *extras} - set(chosen))),
    )


def parsed(path: Path) -> Pylock:
    """Return the file as ``packaging`` reads it.

    Raises:
        LockError: it is not a ``pylock.toml``, or of a newer version.
    """
    data = read_toml(path)
    try:
        return Pylock.from_dict(data)
    except (PylockValidationError, ValueError, TypeError, AttributeError, RecursionError) as e:
        raise LockError(f"{path}: not a valid pylock.toml: {e}", RESTORE) from None


class _PylockReader:
    """Turns selected packages into builder's."""

    def __init__(self, path: Path, platform: str) -> None:
        self._path = path
        self._maker = PackageMaker(path, platform)

    def read(self, package: Package, selected: _Selected) -> LockedPackage | SourceSpec:
        """Return a package of the file: a wheel, or a source that must be built."""
        if isinstance(selected, PackageWheel | PackageArchive) and _file_name(selected).endswith(
            ".whl"
        ):
            return self._wheel(package, selected)
        name, where = package.name, str(self._path)
        if isinstance(selected, PackageSdist):
            url = selected.url or selected.path or ""
            return SourceSpec(
                "sdist", name, url, sha256=selected.hashes.get("sha256", ""), where=where
            )
        folder = selected.subdirectory or ""  # type: ignore[union-attr]  # a wheel is none of these
        if isinstance(selected, PackageDirectory):
            is_editable = bool(selected.editable)
            return SourceSpec(
                "local", name, selected.path, subdirectory=folder, editable=is_editable, where=where
            )
        url = selected.url or selected.path or ""
        if isinstance(selected, PackageVcs):
            if selected.type == "git":
                return SourceSpec("git", name, url, selected.commit_id, folder, where=where)
            raise LockError(
                f"{where}: package {name} is of {selected.type}, not git",
                "lock a release of the package, or an archive of the revision",
            )
        sha256 = selected.hashes.get("sha256", "")
        return SourceSpec("archive", name, url, subdirectory=folder, sha256=sha256, where=where)

    def _wheel(self, package: Package, selected: PackageWheel | PackageArchive) -> LockedPackage:
        name = _file_name(selected)
        url = (selected.url or selected.path or name).partition("#")[0]
        sha256 = selected.hashes.get("sha256")
        if not sha256:
            raise self._maker.no_hash(package.name, url)
        version = str(package.version or name.split("-")[1])
        names = (item.get("name") for item in package.dependencies or ())
        needs = {name: "" for name in names if isinstance(name, str)}
        return self._maker.make(
            "pip", package.name, version, url, sha256=sha256, dependencies=needs
        )


def _file_name(selected: PackageWheel | PackageArchive) -> str:
    if isinstance(selected, PackageWheel):
        return selected.filename
    return (selected.url or selected.path or "").partition("#")[0].rsplit("/", 1)[-1]
