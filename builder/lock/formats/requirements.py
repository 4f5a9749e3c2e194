"""Requirements files that pin everything, as pip-compile, uv, poetry and pip freeze write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import Requirement

from builder.errors import ConfigError, LockError
from builder.lock.formats.common import PackageMaker, read_text
from builder.lock.formats.foreign import ForeignLock, ForeignSource, PinnedRequirement
from builder.lock.markers import marker_environment
from builder.lock.pipsection import PipSection, requirement_lines
from builder.lock.sourcerecords import GIT_HASH
from builder.lock.spec import SourceSpec, Spec
from builder.model import MAIN, LockedPackage
from builder.redact import redact


@dataclass
class Pins:
    """The requirements of a text whose markers are true for one target."""

    packages: list[LockedPackage] = field(default_factory=list)
    """Wheels by URL and hash."""
    sources: list[ForeignSource] = field(default_factory=list)
    pinned: list[PinnedRequirement] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """Those that name indexes."""


def read_requirements(
    path: Path, platform: str, python: str, groups: Sequence[str], root: Path | None = None
) -> ForeignLock:
    """The requirements of a file whose markers are true for the target. It names no file outside of ``root``.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if a requirement is not pinned.
    """
    for group in groups:
        if group != MAIN:
            raise LockError(
                f"{path}: a requirements file has no group {group!r}",
                "name one file for each set of packages",
            )
    pins = read_pins(path, read_text(path), platform, python, root)
    without = sum(not pinned.sha256 for pinned in pins.pinned)
    notes: tuple[str, ...] = ()
    if without:
        what = "1 requirement has" if without == 1 else f"{without} requirements have"
        notes = (f"{path}: {what} no hash: builder locks the hashes of the index",)
    return ForeignLock(
        "requirements",
        path,
        packages=tuple(pins.packages),
        sources=tuple(pins.sources),
        pinned=tuple(pins.pinned),
        index_options=tuple(dict.fromkeys(pins.options)),
        groups=(MAIN,),
        notes=notes,
    )


def read_pins(path: Path, text: str, platform: str, python: str, root: Path | None = None) -> Pins:
    """Read requirements for one target.

    Args:
        path: the file of the text, for messages and relative paths.
        text: the content of a requirements file.
        platform: conda's name of the target's platform.
        python: the target's version of Python.
        root: the project folder; None: the folder of the file.

    Raises:
        LockError: a line is no requirement, is not pinned, or names something outside of the project.
    """
    section = PipSection(path, root or path.parent, is_lock=True)
    try:
        for number, line in requirement_lines(text):
            section.read(line, f"{path}:{number}", (path,))
    except ConfigError as e:
        raise LockError(e.message, e.hint) from None
    reader = _Reader(section, platform, python)
    for spec in section.specs:
        reader.add(spec)
    for source in section.sources:
        reader.add_source(source)
    options = [f"--index-url {section.index}"] if section.index else []
    options += [f"--extra-index-url {url}" for url in section.extra_indexes]
    reader.pins.options = [*options, *(f"--find-links {link}" for link in section.links)]
    return reader.pins


class _Reader:
    """Sorts requirements into packages, sources and pins."""

    def __init__(self, section: PipSection, platform: str, python: str) -> None:
        self.pins = Pins()
        self._section = section
        self._environment = {**marker_environment(platform, python), "extra": ""}
        self._maker = PackageMaker(section.path, platform)
        self._places: dict[str, PinnedRequirement] = {}

    def add(self, spec: Spec) -> None:
        """Sort a requirement with a version, or with the URL of a wheel."""
        requirement = Requirement(spec.text)
        if not self._applies(requirement.marker, spec.where):
            return
        sha256 = frozenset(h.removeprefix("sha256:") for h in spec.hashes if h.startswith("sha256:"))
        if spec.hashes and not sha256:
            raise LockError(
                f"{spec.where}: no hash of {spec.name} is a sha256, and builder verifies sha256",
                "write the file again with sha256 hashes: pip-compile --generate-hashes, or uv export",
            )
        if requirement.url is None:
            self._pin(spec, requirement, sha256)
            return
        url, _, fragment = requirement.url.partition("#")
        version = "".join(url.rsplit("/", 1)[-1].split("-")[1:2])
        if fragment.startswith("sha256="):
            sha256 = sha256 or frozenset({fragment.removeprefix("sha256=")})
        if spec.wheel is None and len(sha256) == 1:
            made = self._maker.make("pip", spec.name, version, url, sha256=min(sha256))
            self.pins.packages.append(made)
            return
        # the section has the folder of a wheel of the project among its links
        text = f"{spec.name} @ {url}" if spec.wheel is None else f"{spec.name}=={version}"
        self.pins.pinned.append(PinnedRequirement(spec.name, version, sha256, text, spec.where))

    def add_source(self, source: SourceSpec) -> None:
        """Sort a requirement that has to be built."""
        marker = Marker(source.marker) if source.marker else None
        if not self._applies(marker, source.where):
            return
        if source.kind == "git" and not GIT_HASH.fullmatch(source.revision):
            raise LockError(
                f"{source.where}: {source.shown} names no commit, so this file is not a lock",
                "pin it: git+https://...@COMMIT (40 hex digits), or name the file as the environment",
            )
        url = source.url
        if "://" not in url:  # relative to the project; in a lock to the folder of the lock
            url = os.path.relpath(self._section.root.absolute() / url, self._section.path.parent.absolute())
        found = ForeignSource(source.kind, source.name or "", "", url, source.revision, source.subdirectory)
        found = replace(found, sha256=source.sha256, editable=source.editable, where=source.where)
        self.pins.sources.append(found)

    def _pin(self, spec: Spec, requirement: Requirement, sha256: frozenset[str]) -> None:
        specifiers = list(requirement.specifier)
        is_pin = len(specifiers) == 1 and specifiers[0].operator in ("==", "===")
        if not is_pin or specifiers[0].version.endswith(".*"):
            raise LockError(
                f"{spec.where}: {redact(spec.text)}: not pinned with ==, so this file is not a lock",
                "name it as the environment ('environment:' in the recipe), and builder lock pins it; or pin "
                "it: uv pip compile --generate-hashes FILE -o requirements.txt",
            )
        version = specifiers[0].version
        text = f"{spec.name}{specifiers[0].operator}{version}"
        pin = PinnedRequirement(spec.name, version, sha256, text, spec.where)
        earlier = self._places.setdefault(spec.name, pin)
        if earlier.version != version:
            raise LockError(
                f"{spec.where}: {spec.name} is pinned to {version}, and to {earlier.version} in "
                f"{earlier.where}",
                "remove one of the lines, or give them markers",
            )
        if earlier is pin:
            self.pins.pinned.append(pin)

    def _applies(self, marker: Marker | None, where: str) -> bool:
        try:
            return marker is None or marker.evaluate(self._environment)
        except (ValueError, UndefinedEnvironmentName, RecursionError) as e:
            raise LockError(
                f"{where}: the marker cannot be evaluated: {str(marker)[:200]!r}", f"correct it: {e}"
            ) from None
