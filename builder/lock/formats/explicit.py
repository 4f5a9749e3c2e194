"""Explicit lists of conda packages: ``conda list --explicit --md5``, ``conda-lock render``, pixi's
export.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from builder.errors import LockError
from builder.lock.formats.common import PackageMaker, read_text
from builder.lock.formats.foreign import ForeignLock
from builder.model import LockedPackage

MARK = re.compile(r"^@EXPLICIT\s*$", re.MULTILINE)
_SHA256 = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)
_MD5 = re.compile(r"(?:md5:)?([0-9a-f]{32})", re.IGNORECASE)
_ARCHIVE = re.compile(r"(.+)-([^-]+)-([^-]+?)(?:\.conda|\.tar\.bz2)")


def read_explicit(path: Path, platform: str) -> ForeignLock:
    """Return the packages of an ``@EXPLICIT`` list, in its order: conda links in this order.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also for a package without a hash.
    """
    text = read_text(path)
    if not MARK.search(text):
        raise LockError(
            f"{path}: there is no line @EXPLICIT", "write the list: conda list --explicit --sha256"
        )
    packages: dict[str, LockedPackage] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and not line.startswith(("#", "@")):
            package = _package(line, f"{path}:{number}", platform)
            packages[package.name] = package
    subdirs = {package.subdir for package in packages.values()} - {"noarch"}
    if subdirs and platform not in subdirs:
        raise LockError(
            f"{path}: the list is for {', '.join(sorted(subdirs))}, not {platform}",
            f"write one for this platform: conda-lock render -k explicit -p {platform}",
        )
    channels = dict.fromkeys(package.url.rsplit("/", 2)[0] for package in packages.values())
    return ForeignLock("explicit", path, tuple(packages.values()), channels=tuple(channels))


def _package(line: str, here: str, platform: str) -> LockedPackage:
    if " " in line:
        raise LockError(
            f"{here}: not a URL: {line[:200]!r}",
            "pip packages are not part of an explicit list: lock them with builder",
        )
    url, _, fragment = line.partition("#")
    filename = unquote(urlsplit(url).path).rsplit("/", 1)[-1] if "://" in url else url
    match = _ARCHIVE.fullmatch(filename)
    if match is None or "://" not in url:
        raise LockError(
            f"{here}: not the URL of a conda package: {line[:200]!r}", "write the list again"
        )
    sha256, md5 = _SHA256.fullmatch(fragment), _MD5.fullmatch(fragment)
    maker = PackageMaker(Path(here), platform)
    if not sha256 and not md5:
        raise maker.error(
            f"package {match[1]}: no hash",
            "without a hash a download cannot be verified: write the list with hashes: "
            "conda list --explicit --sha256 (or --md5)",
        )
    return maker.make(
        "conda",
        match[1],
        match[2],
        url,
        sha256=sha256[1].lower() if sha256 else None,
        md5=md5[1].lower() if md5 else None,
    )
