"""Lock files of pixi, versions 4 to 7. rattler reads them: pixi itself uses that library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from packaging.utils import canonicalize_name

from builder.core.errors import LockError
from builder.core.model import LockedPackage
from builder.lock.conda import conda_dependencies
from builder.lock.config.merge import choices
from builder.lock.sourcerecords import GIT_HASH
from builder.lock.spec import SourceSpec, Spec

from .common import RESTORE, ForeignLock, Found, LockTarget, PackageMaker, read_yaml

if TYPE_CHECKING:
    from rattler.lock.environment import Environment
    from rattler.lock.package import LockedPackage as PixiPackage
    from rattler.lock.package import PypiLockedPackage
    from rattler.lock.platform import LockPlatform

DEFAULT = "default"


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the packages of one environment of a ``pixi.lock`` for the target's platform.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if the environment has a conda
            package that pixi builds from source.
    """
    lock = _parsed(path)
    found = dict(lock.environments())
    name = target.recipe.lock_environment or DEFAULT
    if name not in found:
        hint = f"choose one with 'lock_environment:' in the recipe; {choices(name, sorted(found))}"
        raise LockError(f"{path}: there is no environment {name!r}", hint)
    chosen = found[name]
    platform = _platform(path, name, chosen, target.recipe.platform)
    maker = PackageMaker(path, target.recipe)
    return ForeignLock(
        tuple(_read(package, name, maker) for package in chosen.packages(platform) or []),
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
    """Return the target's platform as rattler has it.

    Since version 7 a file may have several with one subdir, each for other machines.
    """
    offered = chosen.platforms()
    same = [one for one in offered if str(one.subdir) == platform]
    named = [one for one in same if one.name == platform]
    if found := named or same[:2]:
        if len(found) == 1:
            return found[0]
        raise LockError(
            f"{path}: environment {environment} has several platforms for {platform}: "
            f"{', '.join(sorted(one.name for one in same))}",
            f"name one of them {platform} in pixi.toml, and lock again",
        )
    names = ", ".join(sorted(one.name for one in offered)) or "no platform"
    hint = f"add the platform and lock again: pixi workspace platform add {platform}"
    raise LockError(f"{path}: environment {environment} is for {names}, not {platform}", hint)


def _read(package: PixiPackage, environment: str, maker: PackageMaker) -> Found:
    """Return a package of the file."""
    from rattler.lock.package import CondaLockedSourcePackage, PypiLockedPackage

    if isinstance(package, CondaLockedSourcePackage):
        raise maker.error(
            f"environment {environment}: {package.name} is a conda package "
            f"that pixi builds from source ({package.location})",
            "choose an environment without it: lock_environment: NAME; or let builder lock: "
            "remove the recipe, and run: builder init --from pyproject.toml",
        )
    if isinstance(package, PypiLockedPackage):
        is_wheel = package.location.partition("#")[0].endswith(".whl")
        return (_wheel if is_wheel else _source)(package, maker)
    record = package.package_record  # type: ignore[attr-defined]  # a binary has one
    version, needs = str(record.version), conda_dependencies(record.depends)
    name, url, hashes = package.name, package.location, _hashes(package)
    if url.endswith(".whl"):  # of a conda channel; its build string is no part of the name
        return maker.wheel(url, hashes.get("sha256", ""), needs)
    return maker.make("conda", name, version, url, hashes, needs)


def _wheel(package: PypiLockedPackage, maker: PackageMaker) -> LockedPackage | Spec:
    """Return a wheel. One with a URL may have no hash: ``pixi add NAME @ URL`` locks it so."""
    name = canonicalize_name(package.name)
    url, _, fragment = package.location.removeprefix("direct+").partition("#")
    sha256 = _hashes(package).get("sha256") or fragment.partition("sha256=")[2]
    if not sha256 and "://" in url:
        return Spec(f"{name} @ {url}", name, str(maker.path))
    needs = _requirements(package.requires_dist)
    return maker.make("pip", name, package.version, url, {"sha256": sha256}, needs)


def _source(package: PypiLockedPackage, maker: PackageMaker) -> SourceSpec:
    """Return a PyPI package that must be built."""
    url, name, here = package.location.removeprefix("direct+"), package.name, str(maker.path)
    sha256 = _hashes(package).get("sha256", "")
    if url.startswith("git+"):
        return _git(name, url.removeprefix("git+"), here, maker)
    if "://" in url:
        return SourceSpec("sdist", name, url.partition("#")[0], sha256=sha256, where=here)
    return SourceSpec("local", name, url or ".", sha256=sha256, where=here)


def _git(name: str, url: str, here: str, maker: PackageMaker) -> SourceSpec:
    """Read ``https://host/repository?subdirectory=x&rev=y#COMMIT``, as pixi and uv write it."""
    parts = urlsplit(url)
    values = {key: texts[-1] for key, texts in parse_qs(parts.query).items()}
    commit = parts.fragment if GIT_HASH.fullmatch(parts.fragment) else values.get("rev", "")
    if not GIT_HASH.fullmatch(commit):
        raise maker.error(f"package {name}: its git URL has no commit: {url[:200]!r}")
    in_fragment = parse_qs(parts.fragment).get("subdirectory", [""])[-1]
    subdirectory = values.get("subdirectory", in_fragment)
    plain = parts._replace(query="", fragment="").geturl()
    return SourceSpec("git", name, plain, commit, subdirectory, where=here)


def _hashes(package: PixiPackage) -> dict[str, str]:
    """Return the hashes of the file in hex, by ``sha256`` and ``md5``."""
    # py-rattler 0.28 wraps a missing value, which has no such attributes
    found = {name: getattr(package.hashes, name, None) for name in ("sha256", "md5")}
    return {name: value.hex() for name, value in found.items() if value}


def _requirements(requires_dist: Sequence[str]) -> dict[str, str]:
    """Return the names that a wheel needs without its extras, with any other marker.

    pip installs these first.
    """
    names: dict[str, str] = {}
    for text in requires_dist:
        match = re.match(r"[A-Za-z0-9][\w.-]*", text)
        if match and "extra" not in text.partition(";")[2]:
            names[canonicalize_name(match[0])] = ""
    return names
