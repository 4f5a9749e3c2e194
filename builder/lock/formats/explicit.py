"""Explicit lists of conda packages, as conda, ``conda-lock render`` and pixi write them."""

from __future__ import annotations

import re
from pathlib import Path

from builder.core.errors import LockError
from builder.core.model import LockedPackage
from builder.lock.urls import filename_of

from .common import PackageMaker, read_text
from .foreign import ForeignLock, LockTarget

#: The end of a line, behind ``#``.
_HASHES = {
    "sha256": re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE),
    "md5": re.compile(r"(?:md5:)?([0-9a-f]{32})", re.IGNORECASE),
}
_ARCHIVE = re.compile(r"(.+)-([^-]+)-([^-]+?)(?:\.conda|\.tar\.bz2)")


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the packages of an ``@EXPLICIT`` list, in its order: conda links in this order.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also for a package without a hash.
    """
    packages: dict[str, LockedPackage] = {}
    for number, raw in enumerate(read_text(path).splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith(("#", "@")):
            package = _package(line, f"{path}:{number}", target.recipe.platform)
            packages[package.name] = package
    subdirs = {package.subdir for package in packages.values()} - {"noarch"}
    if subdirs and target.recipe.platform not in subdirs:
        raise LockError(
            f"{path}: the list is for {', '.join(sorted(subdirs))}, not {target.recipe.platform}",
            f"write one for this platform: conda-lock render -k explicit -p {target.recipe.platform}",
        )
    channels = dict.fromkeys(package.url.rsplit("/", 2)[0] for package in packages.values())
    return ForeignLock(tuple(packages.values()), channels=tuple(channels))


def _package(line: str, here: str, platform: str) -> LockedPackage:
    if " " in line:
        hint = "pip packages are not part of an explicit list: lock them with builder"
        raise LockError(f"{here}: not a URL: {line[:200]!r}", hint)
    url, _, fragment = line.partition("#")
    match = _ARCHIVE.fullmatch(filename_of(url))
    if match is None or "://" not in url:
        problem = f"{here}: not the URL of a conda package: {line[:200]!r}"
        raise LockError(problem, "write the list again")
    found = {name: pattern.fullmatch(fragment) for name, pattern in _HASHES.items()}
    hashes = {name: digits[1] for name, digits in found.items() if digits}
    maker = PackageMaker(Path(here), platform)
    if not hashes:
        raise maker.error(
            f"package {match[1]}: no hash",
            "without a hash a download cannot be verified: write the list with hashes: "
            "conda list --explicit --sha256 (or --md5)",
        )
    return maker.make("conda", match[1], match[2], url, hashes)
