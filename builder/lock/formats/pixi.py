"""Lock files of pixi, versions 4 to 7. rattler reads them: pixi itself uses that library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from packaging.utils import canonicalize_name

from builder.config.merge import choices
from builder.errors import LockError
from builder.lock.conda import conda_dependencies
from builder.lock.formats.common import RESTORE, PackageMaker, read_yaml
from builder.lock.formats.foreign import ForeignLock, Found
from builder.lock.sourcerecords import GIT_HASH
from builder.lock.spec import SourceSpec, Spec
from builder.model import LockedPackage

if TYPE_CHECKING:
    from rattler.lock.environment import Environment
    from rattler.lock.package import LockedPackage as PixiPackage
    from rattler.lock.package import PypiLockedPackage
    from rattler.lock.platform import LockPlatform

DEFAULT = "default"


def read_pixi(path: Path, platform: str, environment: str | None) -> ForeignLock:
    """Return the packages of one environment of a ``pixi.lock`` for one platform.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if the environment has a conda
            package that pixi builds from source.
    """
    lock = _parsed(path)
    found = dict(lock.environments())
    name = environment or DEFAULT
    if name not in found:
        raise LockError(
            f"{path}: there is no environment {name!r}",
            f"choose one with 'lock_environment:' in the recipe; {choices(name, sorted(found))}",
        )
    chosen = found[name]
    place = _platform(path, name, chosen, platform)
    reader = _PixiReader(path, platform, name)
    return ForeignLock(
        "pixi",
        path,
        tuple(map(reader.read, chosen.packages(place) or [])),
        channels=tuple(str(channel).rstrip("/") for channel in chosen.channels()),
    )


def _parsed(path: Path) -> Any:
    """Return the file as rattler reads it, within builder's limits."""
    read_yaml(path)  # rattler's reader has no limits
    from rattler import LockFile

    try:
        return LockFile.from_path(path)
    except Exception as e:  # rattler has several unrelated exception classes for this
        raise LockError(f"{path}: rattler cannot read this lock file: {e}", RESTORE) from None


def _platform(path: Path, environment: str, chosen: Environment, platform: str) -> LockPlatform:
    """Return the platform of the file that the target is.

    Since version 7 a file may have several with one subdir, each for other machines.
    """
    places = chosen.platforms()
    same = [place for place in places if str(place.subdir) == platform]
    named = [place for place in same if place.name == platform]
    if found := named or same[:2]:
        if len(found) == 1:
            return found[0]
        raise LockError(
            f"{path}: environment {environment} has several platforms for {platform}: "
            f"{', '.join(sorted(place.name for place in same))}",
            f"name one of them {platform} in pixi.toml, and lock again",
        )
    names = ", ".join(sorted(place.name for place in places)) or "no platform"
    raise LockError(
        f"{path}: environment {environment} is for {names}, not {platform}",
        f"add the platform and lock again: pixi workspace platform add {platform}",
    )


class _PixiReader:
    """Turns rattler's packages into builder's."""

    def __init__(self, path: Path, platform: str, environment: str) -> None:
        self._path = path
        self._environment = environment
        self._maker = PackageMaker(path, platform)

    def read(self, package: PixiPackage) -> Found:
        """Return a package of the file."""
        from rattler.lock.package import CondaLockedSourcePackage, PypiLockedPackage

        if isinstance(package, CondaLockedSourcePackage):
            raise LockError(
                f"{self._path}: environment {self._environment}: {package.name} is a conda package that pixi "
                f"builds from source ({package.location})",
                "choose an environment without it: lock_environment: NAME; or let builder lock: remove the "
                "recipe, and run: builder init --from pyproject.toml",
            )
        if isinstance(package, PypiLockedPackage):
            return self._wheel(package) if _is_wheel(package.location) else self._source(package)
        sha256, md5 = _hashes(package)
        record = package.package_record  # type: ignore[attr-defined]  # a binary package always has one
        if not sha256 and not md5:
            raise self._maker.no_hash(package.name, package.location)
        return self._maker.make(
            "conda",
            package.name,
            str(record.version),
            package.location,
            sha256=sha256,
            md5=md5,
            dependencies=conda_dependencies(record.depends),
        )

    def _wheel(self, package: PypiLockedPackage) -> LockedPackage | Spec:
        """Return a wheel. One with a URL may have no hash: ``pixi add NAME @ URL`` locks it so."""
        url, _, fragment = package.location.removeprefix("direct+").partition("#")
        sha256 = _hashes(package)[0] or fragment.partition("sha256=")[2]
        if sha256:
            needs = _requirements(package.requires_dist)
            return self._maker.make(
                "pip", package.name, package.version, url, sha256=sha256, dependencies=needs
            )
        if "://" not in url:
            raise self._maker.no_hash(package.name, url)
        name = canonicalize_name(package.name)
        return Spec(f"{name} @ {url}", name, str(self._path))

    def _source(self, package: PypiLockedPackage) -> SourceSpec:
        """Return a PyPI package that must be built."""
        url, name, here = package.location.removeprefix("direct+"), package.name, str(self._path)
        sha256 = _hashes(package)[0] or ""
        if url.startswith("git+"):
            return _git(name, url.removeprefix("git+"), here, self._maker)
        if "://" in url:
            return SourceSpec("sdist", name, url.partition("#")[0], sha256=sha256, where=here)
        return SourceSpec("local", name, url or ".", sha256=sha256, where=here)


def _git(name: str, url: str, here: str, maker: PackageMaker) -> SourceSpec:
    """``https://host/repository?subdirectory=x&rev=y#COMMIT``, as pixi and uv write it."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    fragment = parse_qs(parts.fragment)
    commit = (
        parts.fragment if GIT_HASH.fullmatch(parts.fragment) else (query.get("rev") or [""])[-1]
    )
    if not GIT_HASH.fullmatch(commit):
        raise maker.error(f"package {name}: its git URL has no commit: {url[:200]!r}")
    subdirectory = (query.get("subdirectory") or fragment.get("subdirectory") or [""])[-1]
    plain = parts._replace(query="", fragment="").geturl()
    return SourceSpec("git", name, plain, commit, subdirectory, where=here)


def _is_wheel(location: str) -> bool:
    return location.partition("#")[0].endswith(".whl")


def _hashes(package: PixiPackage) -> tuple[str | None, str | None]:
    """SHA-256 and MD5 in hex; None where the file has none."""
    hashes = package.hashes
    try:
        sha256, md5 = (hashes.sha256, hashes.md5) if hashes else (None, None)
    except AttributeError:  # py-rattler 0.28 wraps a missing value
        return None, None
    return sha256.hex() if sha256 else None, md5.hex() if md5 else None


def _requirements(requires_dist: Sequence[str]) -> dict[str, str]:
    """Return the names that a wheel needs without its extras: pip installs these first. Other
    markers stay open.
    """
    names: dict[str, str] = {}
    for text in requires_dist:
        match = re.match(r"[A-Za-z0-9][\w.-]*", text)
        if match and "extra" not in text.partition(";")[2]:
            names[canonicalize_name(match[0])] = ""
    return names
