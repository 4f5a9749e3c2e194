"""``pylock.toml`` (PEP 751). The package ``packaging`` reads it and selects what a target installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockUnsupportedVersionError,
    PylockValidationError,
)
from packaging.specifiers import InvalidSpecifier
from packaging.version import InvalidVersion

from builder.errors import LockError
from builder.lock.formats.common import (
    RESTORE,
    PackageMaker,
    choices,
    glibc_of,
    read_text,
    read_toml,
    where,
)
from builder.lock.formats.foreign import ForeignLock, ForeignSource
from builder.lock.markers import marker_environment
from builder.lock.wheels import wheel_tags
from builder.model import MAIN, LockedPackage

_Selected = PackageVcs | PackageDirectory | PackageArchive | PackageWheel | PackageSdist


def read_pylock(
    path: Path, platform: str, python: str, groups: Sequence[str], virtual: Mapping[str, str]
) -> ForeignLock:
    """The packages of a ``pylock.toml`` for one target.

    ``main`` stands for the file's default groups. Any other group is a dependency group or an extra.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    lock = parsed(path)
    defaults, named = list(lock.default_groups or []), list(lock.dependency_groups or [])
    extras = list(lock.extras or [])
    offered = sorted({MAIN, *named, *extras})
    for group in groups:
        if group not in offered and group not in defaults:
            raise LockError(f"{path}: there is no group or extra {group!r}", choices(group, offered))
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
    reader = _Reader(path, platform)
    return ForeignLock(
        "pylock",
        path,
        packages=tuple(p for p in (reader.package(*pair) for pair in selected) if p is not None),
        sources=tuple(s for s in (reader.source(*pair) for pair in selected) if s is not None),
        groups=tuple(offered),
        left_out=tuple(sorted({*named, *extras} - set(chosen))),
        needs_python=str(lock.requires_python or ""),
    )


def parsed(path: Path) -> Pylock:
    """The file as ``packaging`` reads it.

    Raises:
        LockError: it is not a ``pylock.toml``, or of a newer version.
    """
    data = read_toml(path)
    try:
        return Pylock.from_dict(data)
    except PylockUnsupportedVersionError as e:
        raise LockError(
            f"{path}: lock-version {data.get('lock-version')!r}: {e}; builder reads version 1.0",
            "update builder, or lock with an older version of the tool",
        ) from None
    except PylockValidationError as e:
        raise LockError(f"{path}: not a valid pylock.toml: {e}", RESTORE) from None
    except (InvalidMarker, InvalidSpecifier, InvalidVersion, ValueError, TypeError, AttributeError) as e:
        raise LockError(f"{path}: not a valid pylock.toml: {e}", RESTORE) from None
    except RecursionError:
        raise LockError(f"{path}: not a valid pylock.toml: a marker is too deep", RESTORE) from None


class _Reader:
    """Turns selected packages into builder's."""

    def __init__(self, path: Path, platform: str) -> None:
        self._path = path
        self._maker = PackageMaker(path, platform)
        self._text = ""

    def package(self, package: Package, selected: _Selected) -> LockedPackage | None:
        """The package if its file is a wheel; None for a source."""
        name = _file_name(selected)
        if not isinstance(selected, PackageWheel | PackageArchive) or not name.endswith(".whl"):
            return None
        url = selected.url or selected.path or name
        sha256 = selected.hashes.get("sha256")
        if not sha256:
            raise self._maker.no_hash(package.name, url)
        version = str(package.version) if package.version else _version(name)
        names = (item.get("name") for item in package.dependencies or ())
        needs = {name: "" for name in names if isinstance(name, str)}
        url = url.partition("#")[0]
        return self._maker.make("pip", package.name, version, url, sha256=sha256, dependencies=needs)

    def source(self, package: Package, selected: _Selected) -> ForeignSource | None:
        """The source of a package that must be built; None for a wheel."""
        if _file_name(selected).endswith(".whl"):
            return None
        values: dict[str, Any] = {
            "name": package.name,
            "version": str(package.version) if package.version else "",
            "where": self._where(package.name),
        }
        if isinstance(selected, PackageVcs):
            if selected.type != "git":
                raise LockError(
                    f"{values['where']}: package {package.name} is of {selected.type}, not git",
                    "lock a release of the package, or an archive of the revision",
                )
            values |= {"url": selected.url or selected.path, "revision": selected.commit_id}
            return ForeignSource("git", subdirectory=selected.subdirectory or "", **values)
        if isinstance(selected, PackageDirectory):
            values |= {"url": selected.path, "editable": bool(selected.editable)}
            return ForeignSource("local", subdirectory=selected.subdirectory or "", **values)
        values |= {"url": selected.url or selected.path, "sha256": selected.hashes.get("sha256") or ""}
        if isinstance(selected, PackageArchive):
            return ForeignSource("archive", subdirectory=selected.subdirectory or "", **values)
        return ForeignSource("sdist", **values)

    def _where(self, name: str) -> str:
        self._text = self._text or read_text(self._path)
        return where(self._path, self._text, rf'^name\s*=\s*"{name}"')


def _file_name(selected: _Selected) -> str:
    """The name of the selected file; empty for repositories and folders."""
    if isinstance(selected, PackageVcs | PackageDirectory):
        return ""
    if isinstance(selected, PackageArchive):
        return (selected.url or selected.path or "").partition("#")[0].rsplit("/", 1)[-1]
    return selected.filename


def _version(filename: str) -> str:
    """The version in the name of a wheel."""
    return filename.split("-")[1]
