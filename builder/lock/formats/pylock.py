"""``pylock.toml`` (PEP 751). ``packaging`` reads it, and selects what a target installs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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

from builder.core.errors import LockError
from builder.core.markers import marker_environment
from builder.core.model import MAIN, LockedPackage
from builder.lock.spec import SourceSpec
from builder.lock.wheels import glibc_minor

from .common import RESTORE, PackageMaker, check_groups, read_toml
from .foreign import ForeignLock, LockTarget

_Origin = PackageVcs | PackageDirectory | PackageArchive | PackageWheel | PackageSdist


def requires_python(path: Path) -> str:
    """Return the specifier of a ``pylock.toml``; empty: any Python. Raises as :func:`read`."""
    return str(parse_pylock(path).requires_python or "")


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the packages of a ``pylock.toml`` for one target.

    ``main`` stands for the file's default groups. Any other group is a dependency group or an
    extra.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`.
    """
    lock = parse_pylock(path)
    defaults, named = list(lock.default_groups or []), list(lock.dependency_groups or [])
    extras = list(lock.extras or [])
    other = {*named, *extras}
    groups = target.recipe.groups or (MAIN,)
    check_groups(path, [name for name in groups if name not in defaults], sorted({MAIN, *other}))
    chosen = [name for name in groups if name != MAIN] + (defaults if MAIN in groups else [])
    reader = _PylockReader(path, target.recipe.platform)
    return ForeignLock(
        tuple(reader.read(*pair) for pair in _selected(path, lock, target, chosen)),
        omitted=tuple(sorted(other.difference(chosen))),
    )


def _selected(
    path: Path, lock: Pylock, target: LockTarget, chosen: Sequence[str]
) -> list[tuple[Package, _Origin]]:
    """Return the packages of the chosen groups and extras, with the file that the target takes."""
    extras, named = lock.extras or [], lock.dependency_groups or []
    environment = marker_environment(target.recipe.platform, target.python)
    try:
        return list(
            lock.select(
                environment=environment,  # type: ignore[arg-type]
                tags=target.tags,
                extras=[name for name in chosen if name in extras],
                dependency_groups=[name for name in chosen if name not in extras or name in named],
            )
        )
    except PylockSelectError as e:
        raise LockError(
            f"{path}: {e}",
            f"builder selects for Python {target.python} on {target.recipe.platform} with glibc "
            f"2.{glibc_minor(target.recipe)}: choose another Python or base, or lock again for this target",
        ) from None
    except (ValueError, KeyError, RecursionError) as e:  # a marker that cannot be evaluated
        raise LockError(f"{path}: a marker cannot be evaluated: {e}", RESTORE) from None


def parse_pylock(path: Path) -> Pylock:
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

    def read(self, package: Package, origin: _Origin) -> LockedPackage | SourceSpec:
        """Return a package of the file: a wheel, or a source that must be built."""
        if isinstance(origin, PackageWheel):
            return self._wheel(package, origin, origin.filename)
        name, where = package.name, str(self._path)
        if isinstance(origin, PackageSdist):
            sha256 = origin.hashes.get("sha256", "")
            return SourceSpec("sdist", name, _url(origin), sha256=sha256, where=where)
        folder = origin.subdirectory or ""
        if isinstance(origin, PackageDirectory):
            source = SourceSpec("local", name, origin.path, subdirectory=folder, where=where)
            return replace(source, editable=bool(origin.editable))
        url = _url(origin)
        if isinstance(origin, PackageArchive):
            filename = url.partition("#")[0].rsplit("/", 1)[-1]
            if filename.endswith(".whl"):
                return self._wheel(package, origin, filename)
            sha256 = origin.hashes.get("sha256", "")
            return SourceSpec("archive", name, url, "", folder, sha256=sha256, where=where)
        if origin.type != "git":
            hint = "lock a release of the package, or an archive of the revision"
            raise LockError(f"{where}: package {name} is of {origin.type}, not git", hint)
        return SourceSpec("git", name, url, origin.commit_id, folder, where=where)

    def _wheel(
        self, package: Package, origin: PackageWheel | PackageArchive, filename: str
    ) -> LockedPackage:
        url = (_url(origin) or filename).partition("#")[0]
        hashes = {"sha256": origin.hashes.get("sha256", "")}
        version = str(package.version or filename.split("-")[1])
        names = (item.get("name") for item in package.dependencies or ())
        needs = {name: "" for name in names if isinstance(name, str)}
        return self._maker.make("pip", package.name, version, url, hashes, needs)


def _url(origin: PackageWheel | PackageArchive | PackageSdist | PackageVcs) -> str:
    """Return the URL of a file or repository, or its path."""
    return origin.url or origin.path or ""
