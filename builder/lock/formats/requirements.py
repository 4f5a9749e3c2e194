"""Requirements files that pin everything, as pip-compile, uv, poetry and pip freeze write them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import Requirement

from builder.core.errors import ConfigError, LockError
from builder.core.markers import applies, with_extras
from builder.core.model import LockedPackage
from builder.core.redact import redact
from builder.lock.pipsection import PipSection, requirement_lines
from builder.lock.sourcerecords import GIT_HASH
from builder.lock.spec import SourceSpec, Spec

from .common import ForeignLock, Found, LockTarget, PackageMaker, check_groups, read_text


def requires_python(path: Path) -> str:
    """Return an empty specifier: a list of requirements is for any Python."""
    return ""


def read(path: Path, target: LockTarget) -> ForeignLock:
    """Return the requirements of a file whose markers are true for the target.

    Raises:
        LockError: as :func:`read_pins`; also for a group.
    """
    check_groups(path, target.recipe.groups, hint="name one file for each set of packages")
    return read_pins(path, read_text(path), target)


def read_pins(path: Path, text: str, target: LockTarget) -> ForeignLock:
    """Read requirements for one target, and the options that name indexes.

    Args:
        path: the file of the text, for messages and relative paths.
        text: the content of a requirements file.
        target: the platform, the Python and the project folder.

    Raises:
        LockError: a line is no requirement, is not pinned, or names something outside of the
            project.
    """
    section = PipSection(path, target.recipe.root, is_lock=True)
    try:
        for number, line in requirement_lines(text):
            section.read(line, f"{path}:{number}", (path,))
    except ConfigError as e:
        raise LockError(e.message, e.hint) from None
    reader = _RequirementsReader(section, target)
    found: list[Found | None] = [reader.requirement(spec) for spec in section.pip]
    found += [reader.source(source) for source in section.sources]
    kept = tuple(item for item in found if item is not None)
    return ForeignLock(kept, section.environment(), tuple(reader.skipped))


class _RequirementsReader:
    """Reads the requirements whose markers are true for the target."""

    def __init__(self, section: PipSection, target: LockTarget) -> None:
        self._section = section
        self._target = target
        self._maker = PackageMaker(section.path, target.recipe)
        self._pins: dict[str, Spec] = {}
        self.skipped: list[Spec] = []

    def requirement(self, spec: Spec) -> LockedPackage | Spec | None:
        """Return a pin, or the wheel of a URL; None if it is not for the target."""
        requirement = Requirement(spec.text)
        if not self._applies(requirement.marker, spec):
            return None
        hashes = tuple(sorted(value for value in spec.hashes if value.startswith("sha256:")))
        if spec.hashes and not hashes:
            raise LockError(
                f"{spec.where}: no hash of {spec.name} is a sha256, and builder verifies sha256",
                "write the file again with sha256 hashes: "
                "pip-compile --generate-hashes, or uv export",
            )
        if requirement.url is None:
            return self._pin(spec, requirement, hashes)
        url, _, fragment = requirement.url.partition("#")
        if fragment.startswith("sha256="):
            hashes = hashes or (fragment.replace("=", ":"),)
        if len(hashes) == 1:
            return self._maker.wheel(url, hashes[0].removeprefix("sha256:"))
        return Spec(f"{spec.name} @ {url}", spec.name, spec.where, hashes=hashes)

    def source(self, source: SourceSpec) -> LockedPackage | SourceSpec | None:
        """Return a requirement that has to be built; None if it is not for the target.

        A wheel of the project is one that has a path in place of a URL.
        """
        if not self._applies(source.marker, Spec(source.shown, source.name or "", source.where)):
            return None
        if source.kind == "git" and not GIT_HASH.fullmatch(source.revision):
            raise LockError(
                f"{source.where}: {source.shown} names no commit, so this file is not a lock",
                "pin it: git+https://...@COMMIT (40 hex digits), "
                "or name the file as the environment",
            )
        url = source.url
        if "://" not in url:  # relative to the project; in a lock to the folder of the lock
            root, folder = self._section.root.absolute(), self._section.path.parent.absolute()
            url = os.path.relpath(root / url, folder)
        if url.endswith(".whl"):
            return self._maker.wheel(url, source.sha256)
        return replace(source, url=url)

    def _pin(self, spec: Spec, requirement: Requirement, hashes: tuple[str, ...]) -> Spec | None:
        specifiers = list(requirement.specifier)
        is_pin = len(specifiers) == 1 and specifiers[0].operator in ("==", "===")
        if not is_pin or specifiers[0].version.endswith(".*"):
            raise LockError(
                f"{spec.where}: {redact(spec.text)}: not pinned with ==, so this file is not a lock",
                "name it as the environment ('environment:' in the recipe), and builder lock pins "
                "it; or pin it: uv pip compile --generate-hashes FILE -o requirements.txt",
            )
        text = f"{with_extras(spec.name, requirement.extras)}{specifiers[0]}"
        pin = Spec(text, spec.name, spec.where, hashes=hashes)
        earlier = self._pins.setdefault(spec.name, pin)
        if Requirement(earlier.text).specifier != requirement.specifier:
            raise LockError(
                f"{spec.where}: {pin.text}, and {earlier.text} in {earlier.where}",
                "remove one of the lines, or give them markers",
            )
        return pin if earlier is pin or earlier.text != text else None

    def _applies(self, marker: Marker | str | None, spec: Spec) -> bool:
        try:
            is_kept = applies(marker, self._target.recipe.platform, self._target.python)
        except (ValueError, UndefinedEnvironmentName, RecursionError) as e:
            problem = f"{spec.where}: the marker cannot be evaluated: {str(marker)[:200]!r}"
            raise LockError(problem, f"correct it: {e}") from None
        if not is_kept:
            self.skipped.append(spec)
        return is_kept
