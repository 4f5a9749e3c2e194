"""Explicit lists of conda packages, as conda, ``conda-lock render`` and pixi write them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from builder.core.errors import LockError
from builder.core.model import LockedPackage
from builder.lock.config.recipe import Recipe
from builder.lock.urls import filename_of

from .common import ForeignLock, LockTarget, PackageMaker, read_text
from .requirements import read_pins

#: The end of a line, behind ``#``.
_HASH = re.compile(r"(?i)(?:sha256:)?(?P<sha256>[0-9a-f]{64})|(?:md5:)?(?P<md5>[0-9a-f]{32})")
#: The beginning of a wheel's line, which conda-lock and micromamba install, and conda does not.
_PIP = "# pip "
_ARCHIVE = re.compile(r"(.+)-([^-]+)-([^-]+?)(?:\.conda|\.tar\.bz2)")


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the packages of an ``@EXPLICIT`` list, in its order: conda links in this order.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also for a package without a hash.
    """
    packages: dict[str, LockedPackage] = {}
    lines = [line.strip() for line in read_text(path).splitlines()]
    for number, line in enumerate(lines, 1):
        if line[:1] not in ("", "#", "@"):
            package = _package(line, f"{path}:{number}", target.recipe)
            packages[package.name] = package
    subdirs = {package.subdir for package in packages.values()} - {"noarch"}
    if subdirs and target.recipe.platform not in subdirs:
        raise LockError(
            f"{path}: the list is for {', '.join(sorted(subdirs))}, not {target.recipe.platform}",
            f"write one for this platform: conda-lock render -k explicit -p {target.recipe.platform}",
        )
    channels = dict.fromkeys(package.url.rsplit("/", 2)[0] for package in packages.values())
    wheels = [line.removeprefix(_PIP) if line.startswith(_PIP) else "" for line in lines]
    python = getattr(packages.get("python"), "python_version", "")
    pip = read_pins(path, "\n".join(wheels), replace(target, python=python))
    return replace(pip, found=(*packages.values(), *pip.found), channels=tuple(channels))


def _package(line: str, here: str, recipe: Recipe) -> LockedPackage:
    url, _, fragment = line.partition("#")
    match = _ARCHIVE.fullmatch(filename_of(url))
    if match is None or "://" not in url or " " in line:
        problem = f"{here}: not a URL of a conda package: {line[:200]!r}"
        hint = "write the list again, and a wheel as # pip NAME @ URL#sha256=HASH"
        raise LockError(problem, hint)
    hashes, maker = _HASH.fullmatch(fragment), PackageMaker(Path(here), recipe)
    if hashes is None:
        raise maker.error(
            f"package {match[1]}: no hash",
            "without a hash a download cannot be verified: write the list with hashes: "
            "conda list --explicit --sha256 (or --md5)",
        )
    return maker.make("conda", match[1], match[2], url, hashes.groupdict())
