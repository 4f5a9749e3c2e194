"""Lock files of pixi, versions 4 to 7. rattler reads them: pixi itself uses that library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from packaging.utils import canonicalize_name

from builder.errors import LockError
from builder.lock.formats.common import RESTORE, PackageMaker, choices, read_yaml
from builder.lock.formats.foreign import ForeignLock, ForeignSource, PinnedRequirement
from builder.lock.sourcerecords import GIT_HASH
from builder.model import LockedPackage

if TYPE_CHECKING:
    from rattler.lock.environment import Environment
    from rattler.lock.package import LockedPackage as PixiPackage
    from rattler.lock.package import PypiLockedPackage
    from rattler.lock.platform import LockPlatform

#: The versions of the format that builder reads.
OLDEST, NEWEST = 4, 7
DEFAULT = "default"


def read_pixi(path: Path, platform: str, environment: str | None, virtual: Mapping[str, str]) -> ForeignLock:
    """The packages of one environment of a ``pixi.lock`` for one platform.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if the environment has a conda package
            that pixi builds from source.
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
    place = _platform(path, name, chosen, platform, virtual)
    reader = _Reader(path, platform, name)
    packages = chosen.packages(place) or []
    return ForeignLock(
        "pixi",
        path,
        packages=tuple(p for p in map(reader.package, packages) if p is not None),
        sources=tuple(s for s in map(reader.source, packages) if s is not None),
        pinned=tuple(p for p in map(reader.pin, packages) if p is not None),
        platforms=tuple(sorted({str(place.subdir) for place in chosen.platforms()})),
        channels=tuple(str(channel).rstrip("/") for channel in chosen.channels()),
        groups=tuple(sorted(found)),
        left_out=tuple(sorted(set(found) - {name})),
    )


def _parsed(path: Path) -> Any:
    """The file as rattler reads it, within builder's limits."""
    data = read_yaml(path)  # rattler's reader has no limits
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise LockError(f"{path}: version: is missing or not a number", RESTORE)
    if not OLDEST <= version <= NEWEST:
        raise LockError(
            f"{path}: version {version} of pixi's lock format; builder reads versions {OLDEST} to {NEWEST}",
            "update builder, or lock with an older pixi"
            if version > NEWEST
            else "lock again with a newer pixi, which writes a newer version: pixi lock",
        )
    from rattler import LockFile

    try:
        return LockFile.from_path(path)
    except Exception as e:  # rattler has several unrelated exception classes for this
        raise LockError(f"{path}: rattler cannot read this lock file: {e}", RESTORE) from None


def _platform(
    path: Path, environment: str, chosen: Environment, platform: str, virtual: Mapping[str, str]
) -> LockPlatform:
    """The platform of the file that the target is.

    Since version 7 a file may have several with one subdir, each with virtual packages that a machine must
    have: the one that asks for most of those that the target has is chosen.
    """
    places = chosen.platforms()
    same = [place for place in places if str(place.subdir) == platform]
    if not same:
        names = ", ".join(sorted(place.name for place in places)) or "no platform"
        raise LockError(
            f"{path}: environment {environment} is for {names}, not {platform}",
            f"add the platform and lock again: pixi workspace platform add {platform}",
        )
    suitable = [place for place in same if len(same) == 1 or _has(virtual, place.virtual_packages)]
    if not suitable:
        needs = "; ".join(f"{place.name}: {', '.join(place.virtual_packages)}" for place in same)
        raise LockError(
            f"{path}: environment {environment} needs other virtual packages: {needs}",
            'declare what the target machine has, in the recipe: virtual_packages: {__cuda: "12.4"}',
        )
    return max(suitable, key=lambda place: (len(place.virtual_packages), place.name == platform))


def _has(virtual: Mapping[str, str], needed: Sequence[str]) -> bool:
    """Whether a machine with these virtual packages has at least the needed ones (``__cuda=12.0``)."""
    for text in needed:
        name, _, rest = text.partition("=")
        if name == "__archspec":
            continue
        if name not in virtual:
            return False
        if _numbers(virtual[name]) < _numbers(rest.partition("=")[0]):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("=")[0]))


class _Reader:
    """Turns rattler's packages into builder's."""

    def __init__(self, path: Path, platform: str, environment: str) -> None:
        self._path = path
        self._environment = environment
        self._maker = PackageMaker(path, platform)

    def package(self, package: PixiPackage) -> LockedPackage | None:
        """The package if it has an archive to download; None for a source."""
        from rattler.lock.package import CondaLockedSourcePackage, PypiLockedPackage

        if isinstance(package, CondaLockedSourcePackage):
            raise LockError(
                f"{self._path}: environment {self._environment}: {package.name} is a conda package that pixi "
                f"builds from source ({package.location})",
                "publish it to a channel, or choose an environment without it with 'lock_environment:'",
            )
        sha256, md5 = _hashes(package)
        if isinstance(package, PypiLockedPackage):
            url, sha256 = _wheel(package)
            if not url or (not sha256 and "://" in url):
                return None
            if not sha256:
                raise self._maker.no_hash(package.name, url)
            needs = _requirements(package.requires_dist)
            return self._maker.make(
                "pip", package.name, package.version, url, sha256=sha256, dependencies=needs
            )
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
            dependencies=_dependencies(record.depends),
        )

    def pin(self, package: PixiPackage) -> PinnedRequirement | None:
        """A wheel with a URL and without a hash, as ``pixi add NAME @ URL`` locks it; else None."""
        from rattler.lock.package import PypiLockedPackage

        if not isinstance(package, PypiLockedPackage):
            return None
        url, sha256 = _wheel(package)
        if sha256 or "://" not in url:
            return None
        name = canonicalize_name(package.name)
        return PinnedRequirement(name, package.version, frozenset(), f"{name} @ {url}", str(self._path))

    def source(self, package: PixiPackage) -> ForeignSource | None:
        """The source of a PyPI package that must be built; None for an archive."""
        from rattler.lock.package import PypiLockedPackage

        if not isinstance(package, PypiLockedPackage) or _is_wheel(package.location):
            return None
        sha256, _ = _hashes(package)
        url = package.location.removeprefix("direct+")
        version = "" if package.version.startswith("<") else package.version
        name, here = package.name, str(self._path)
        if url.startswith("git+"):
            return _git(name, version, url.removeprefix("git+"), here, self._maker)
        if "://" in url:
            return ForeignSource(
                "sdist", name, version, url.partition("#")[0], sha256=sha256 or "", where=here
            )
        return ForeignSource("local", name, version, url or ".", sha256=sha256 or "", where=here)


def _git(name: str, version: str, url: str, here: str, maker: PackageMaker) -> ForeignSource:
    """``https://host/repository?subdirectory=x&rev=y#COMMIT``, as pixi and uv write it."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    fragment = parse_qs(parts.fragment)
    commit = parts.fragment if GIT_HASH.fullmatch(parts.fragment) else (query.get("rev") or [""])[-1]
    if not GIT_HASH.fullmatch(commit):
        raise maker.error(f"package {name}: its git URL has no commit: {url[:200]!r}")
    subdirectory = (query.get("subdirectory") or fragment.get("subdirectory") or [""])[-1]
    plain = parts._replace(query="", fragment="").geturl()
    return ForeignSource("git", name, version, plain, revision=commit, subdirectory=subdirectory, where=here)


def _wheel(package: PypiLockedPackage) -> tuple[str, str]:
    """URL (or path) and SHA-256 of a wheel; the URL is empty for a source, the hash if the lock has none."""
    if not _is_wheel(package.location):
        return "", ""
    url = package.location.removeprefix("direct+")
    sha256, _ = _hashes(package)
    match = re.search(r"#sha256=([0-9a-f]{64})$", url)
    if not sha256 and match:
        sha256 = match[1]
    return url.partition("#")[0], sha256 or ""


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


def _dependencies(depends: Sequence[str]) -> dict[str, str]:
    """Names and version specs: ``python >=3.9,<3.10.0a0`` and so on."""
    pairs = (text.partition(" ") for text in depends)
    return {name: spec for name, _, spec in pairs if name}


def _requirements(requires_dist: Sequence[str]) -> dict[str, str]:
    """The names that a wheel needs without its extras: pip installs these first. Other markers stay open."""
    names: dict[str, str] = {}
    for text in requires_dist:
        match = re.match(r"[A-Za-z0-9][\w.-]*", text)
        if match and "extra" not in text.partition(";")[2]:
            names[canonicalize_name(match[0])] = ""
    return names
