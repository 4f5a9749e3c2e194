"""Requirements files that pin everything, as pip-compile, uv, poetry and pip freeze write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import Requirement

from builder.errors import ConfigError, LockError
from builder.lock.formats.common import PackageMaker, read_text
from builder.lock.formats.foreign import ForeignLock, Found
from builder.lock.markers import applies
from builder.lock.pipsection import PipSection, requirement_lines
from builder.lock.sourcerecords import GIT_HASH
from builder.lock.spec import SourceSpec, Spec
from builder.model import MAIN, LockedPackage
from builder.redact import redact


def read_requirements(
    path: Path, platform: str, python: str, groups: Sequence[str], root: Path | None = None
) -> ForeignLock:
    """Return the requirements of a file whose markers are true for the target. It names no file
    outside of ``root``.

    Raises:
        LockError: as :func:`builder.lock.formats.read_foreign`; also if a requirement is not
            pinned.
    """
    for group in groups:
        if group != MAIN:
            raise LockError(
                f"{path}: a requirements file has no group {group!r}",
                "name one file for each set of packages",
            )
    found, options = read_pins(path, read_text(path), platform, python, root)
    return ForeignLock("requirements", path, found, index_options=options)


def read_pins(
    path: Path, text: str, platform: str, python: str, root: Path | None = None
) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """Read requirements for one target, and the options that name indexes.

    Args:
        path: the file of the text, for messages and relative paths.
        text: the content of a requirements file.
        platform: conda's name of the target's platform.
        python: the target's version of Python.
        root: the project folder; None: the folder of the file.

    Raises:
        LockError: a line is no requirement, is not pinned, or names something outside of the
            project.
    """
    section = PipSection(path, root or path.parent, is_lock=True)
    try:
        for number, line in requirement_lines(text):
            section.read(line, f"{path}:{number}", (path,))
    except ConfigError as e:
        raise LockError(e.message, e.hint) from None
    reader = _RequirementsReader(section, platform, python)
    found: list[Found | None] = [reader.requirement(spec) for spec in section.specs]
    found += [reader.source(source) for source in section.sources]
    options = [f"--index-url {section.index}"] if section.index else []
    options += [f"--extra-index-url {url}" for url in section.extra_indexes]
    options += [f"--find-links {link}" for link in section.links]
    return tuple(item for item in found if item is not None), tuple(dict.fromkeys(options))


class _RequirementsReader:
    """Reads the requirements whose markers are true for the target."""

    def __init__(self, section: PipSection, platform: str, python: str) -> None:
        self._section = section
        self._target = (platform, python)
        self._maker = PackageMaker(section.path, platform)
        self._pins: dict[str, Spec] = {}

    def requirement(self, spec: Spec) -> LockedPackage | Spec | None:
        """Return a requirement with a version, or with the URL of a wheel; None if it is not for
        the target.
        """
        requirement = Requirement(spec.text)
        if not self._applies(requirement.marker, spec.where):
            return None
        hashes = tuple(sorted(value for value in spec.hashes if value.startswith("sha256:")))
        if spec.hashes and not hashes:
            raise LockError(
                f"{spec.where}: no hash of {spec.name} is a sha256, and builder verifies sha256",
                "write the file again with sha256 hashes: pip-compile --generate-hashes, or uv export",
            )
        if requirement.url is None:
            return self._pin(spec, requirement, hashes)
        url, _, fragment = requirement.url.partition("#")
        version = "".join(url.rsplit("/", 1)[-1].split("-")[1:2])
        if fragment.startswith("sha256="):
            hashes = hashes or (fragment.replace("=", ":"),)
        if len(hashes) == 1:
            sha256 = hashes[0].removeprefix("sha256:")
            return self._maker.make("pip", spec.name, version, url, sha256=sha256)
        return Spec(f"{spec.name} @ {url}", spec.name, spec.where, hashes=hashes)

    def source(self, source: SourceSpec) -> SourceSpec | None:
        """Return a requirement that has to be built; None if it is not for the target."""
        if not self._applies(source.marker, source.where):
            return None
        if source.kind == "git" and not GIT_HASH.fullmatch(source.revision):
            raise LockError(
                f"{source.where}: {source.shown} names no commit, so this file is not a lock",
                "pin it: git+https://...@COMMIT (40 hex digits), or name the file as the environment",
            )
        url = source.url
        if "://" not in url:  # relative to the project; in a lock to the folder of the lock
            url = os.path.relpath(
                self._section.root.absolute() / url, self._section.path.parent.absolute()
            )
        return replace(source, url=url)

    def _pin(self, spec: Spec, requirement: Requirement, hashes: tuple[str, ...]) -> Spec | None:
        specifiers = list(requirement.specifier)
        is_pin = len(specifiers) == 1 and specifiers[0].operator in ("==", "===")
        if not is_pin or specifiers[0].version.endswith(".*"):
            raise LockError(
                f"{spec.where}: {redact(spec.text)}: not pinned with ==, so this file is not a lock",
                "name it as the environment ('environment:' in the recipe), and builder lock pins it; or pin "
                "it: uv pip compile --generate-hashes FILE -o requirements.txt",
            )
        pin = Spec(f"{spec.name}{specifiers[0]}", spec.name, spec.where, hashes=hashes)
        earlier = self._pins.setdefault(spec.name, pin)
        if earlier.text != pin.text:
            raise LockError(
                f"{spec.where}: {pin.text}, and {earlier.text} in {earlier.where}",
                "remove one of the lines, or give them markers",
            )
        return pin if earlier is pin else None

    def _applies(self, marker: Marker | str | None, where: str) -> bool:
        try:
            return applies(marker, *self._target)
        except (ValueError, UndefinedEnvironmentName, RecursionError) as e:
            raise LockError(
                f"{where}: the marker cannot be evaluated: {str(marker)[:200]!r}",
                f"correct it: {e}",
            ) from None
