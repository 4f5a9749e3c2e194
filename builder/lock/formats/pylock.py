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
from packaging.version import Version

from builder.core.errors import LockError
from builder.core.markers import marker_environment
from builder.core.model import MAIN, LockedPackage
from builder.lock.spec import SourceSpec, Spec
from builder.lock.wheels import glibc_minor

from .common import RESTORE, ForeignLock, LockTarget, PackageMaker, check_groups, read_toml

_NEWEST = Version("1.0")
#: The hint for a package without files: pdm 2.29.4 exports none beside hishel 2, with exit code 0.
_NO_FILES = "export it again; with pdm, before: pdm self add 'hishel<2'"
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
    defaults = list(lock.default_groups or [])
    other = {*(lock.dependency_groups or []), *(lock.extras or [])}
    groups = check_groups(path, target.recipe.groups or (MAIN,), sorted({MAIN, *other, *defaults}))
    chosen = [name for name in groups if name != MAIN] + (defaults if MAIN in groups else [])
    maker = PackageMaker(path, target.recipe)
    selected = _selected(path, lock, target, chosen)
    names = {package.name for package, _ in selected}
    marked = (Spec(f"{p.name} ; {p.marker}", p.name, str(path)) for p in lock.packages if p.marker)
    return ForeignLock(
        tuple(_read(*pair, maker) for pair in selected),
        skipped=tuple(filter(lambda spec: spec.name not in names, marked)),
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
        lock = Pylock.from_dict(data)
        if lock.lock_version > _NEWEST:
            raise ValueError(f"lock-version {lock.lock_version}, and builder reads {_NEWEST}")
        return lock
    except (PylockValidationError, ValueError, TypeError, AttributeError, RecursionError) as e:
        hint = _NO_FILES if "sdist and wheels are not set" in str(e) else RESTORE
        raise LockError(f"{path}: not a valid pylock.toml: {e}", hint) from None


def _read(package: Package, origin: _Origin, maker: PackageMaker) -> LockedPackage | SourceSpec:
    """Return a package of the file: a wheel, or a source that must be built."""
    name, where = package.name, str(maker.path)
    if isinstance(origin, PackageDirectory | PackageVcs):
        return _tree(name, origin, where)
    if origin.hashes and "sha256" not in origin.hashes:
        hint = "builder verifies no other hash: lock with an index that has sha256 hashes"
        raise maker.error(f"package {name}: its file has no sha256", hint)
    url, sha256 = _url(origin), origin.hashes.get("sha256", "")
    if isinstance(origin, PackageWheel):
        return _wheel(package, url or origin.filename, sha256, maker)
    if isinstance(origin, PackageSdist):
        return SourceSpec("sdist", name, url, sha256=sha256, where=where)
    if url.partition("#")[0].endswith(".whl"):
        return _wheel(package, url, sha256, maker)
    folder = origin.subdirectory or ""
    return SourceSpec("archive", name, url, "", folder, sha256=sha256, where=where)


def _tree(name: str, origin: PackageDirectory | PackageVcs, where: str) -> SourceSpec:
    """Return a folder of the project, or a repository."""
    folder = origin.subdirectory or ""
    if isinstance(origin, PackageDirectory):
        source = SourceSpec("local", name, origin.path, subdirectory=folder, where=where)
        return replace(source, editable=bool(origin.editable))
    if origin.type != "git":
        hint = "lock a release of the package, or an archive of the revision"
        raise LockError(f"{where}: package {name} is of {origin.type}, not git", hint)
    return SourceSpec("git", name, _url(origin), origin.commit_id, folder, where=where)


def _wheel(package: Package, url: str, sha256: str, maker: PackageMaker) -> LockedPackage:
    names = (item.get("name") for item in package.dependencies or ())
    needs = {name: "" for name in names if isinstance(name, str)}
    return maker.wheel(url.partition("#")[0], sha256, needs)


def _url(origin: PackageWheel | PackageArchive | PackageSdist | PackageVcs) -> str:
    """Return the URL of a file or repository, or its path."""
    return origin.url or origin.path or ""
