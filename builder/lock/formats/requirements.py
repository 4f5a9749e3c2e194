"""Requirements files that pin everything, as pip-compile, uv, poetry and pip freeze write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.config.inside import check_inside
from builder.errors import LockError
from builder.lock.formats.common import PackageMaker, read_text
from builder.lock.formats.foreign import ForeignLock, ForeignSource, PinnedRequirement
from builder.lock.markers import marker_environment
from builder.model import MAIN, LockedPackage
from builder.redact import redact

#: Files that name each other with ``-r``.
MAX_NESTED = 10

_HASH = re.compile(r"\s--hash[= ](\S+)")
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(?:\s*=\s*|\s+)?(.*)")
#: Options of pip that say nothing about what is locked, or that builder does anyway.
_WITHOUT_EFFECT = frozenset(
    {"--require-hashes", "--no-deps", "--pre", "--prefer-binary", "--only-binary", "--no-binary", "-c"}
    | {"--no-index", "--trusted-host", "--use-feature", "--no-build-isolation", "--constraint"}
)
_INDEXES = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
}
_FILE = ("-r", "--requirement")
_EDITABLE = ("-e", "--editable")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Line:
    """One requirement of a file."""

    text: str
    """The requirement with its marker, without hashes; a path or URL if it is one."""
    where: str
    """``FILE:LINE``."""
    sha256: frozenset[str] = frozenset()
    editable: bool = False
    folder: Path = Path()
    """The folder of the file: relative paths begin here."""


@dataclass
class _File:
    """What a file and those that it names contain."""

    root: Path | None = None
    """``-r`` names files in this folder only; None: any."""
    lines: list[Line] = field(default_factory=list)
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
    file = _File(root)
    _read(path, read_text(path), file, (path.resolve(),))
    sorter = Sorter(path, platform, python)
    for line in file.lines:
        sorter.add(line)
    without = sum(not pinned.sha256 for pinned in sorter.pinned)
    notes: tuple[str, ...] = ()
    if without:
        what = "1 requirement has" if without == 1 else f"{without} requirements have"
        notes = (f"{path}: {what} no hash: builder locks the hashes of the index",)
    return ForeignLock(
        "requirements",
        path,
        packages=tuple(sorter.packages),
        sources=tuple(sorter.sources),
        pinned=tuple(sorter.pinned),
        index_options=tuple(dict.fromkeys(file.options)),
        groups=(MAIN,),
        notes=notes,
    )


def lines_of(path: Path, text: str) -> list[Line]:
    """The requirements in a text; ``path`` is for messages and relative paths. Raises LockError."""
    file = _File()
    _read(path, text, file, (path.resolve(),))
    return file.lines


def _read(path: Path, text: str, file: _File, chain: tuple[Path, ...]) -> None:
    for number, line in _joined(text):
        here = f"{path}:{number}"
        if line.startswith("-"):
            _option(path, here, line, file, chain)
        else:
            file.lines.append(_line(line, here, path.parent))


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers: continued lines joined, comments removed, as pip does it."""
    parts: list[str] = []
    start = 0
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = re.sub(r"(^|\s)#.*$", "", raw)
        is_comment = raw.lstrip().startswith("#")
        if not parts:
            start = number
        if line.endswith("\\") and not is_comment:
            parts.append(line[:-1])
            continue
        if is_comment and parts:
            continue
        joined = " ".join([*parts, line]).strip()
        parts = []
        if joined:
            yield start, joined


def _option(path: Path, here: str, line: str, file: _File, chain: tuple[Path, ...]) -> None:
    match = _OPTION.fullmatch(line)
    name, value = (match[1], match[2].strip().strip("\"'")) if match else (line, "")
    if match and name[:2] in ("-r", "-e", "-i", "-f", "-c") and not name.startswith("--") and len(name) > 2:
        name, value = name[:2], name[2:] + value
    if name in _EDITABLE:
        file.lines.append(_line(value, here, path.parent, editable=True))
    elif name in _INDEXES:
        file.options.append(f"{_INDEXES[name]} {value}")
    elif name in _FILE:
        _nested(path, here, value, file, chain)
    elif name not in _WITHOUT_EFFECT:
        raise LockError(f"{here}: {name}: not an option of a requirements file", "remove the line")


def _nested(path: Path, here: str, value: str, file: _File, chain: tuple[Path, ...]) -> None:
    other = path.parent / value
    if "://" in value or not value:
        raise LockError(f"{here}: -r {redact(value)}: not a file", "download it, and name the file")
    if file.root is not None:
        check_inside(other, (file.root,), f"{here}: -r {value}")
    if other.resolve() in chain or len(chain) > MAX_NESTED:
        raise LockError(f"{here}: -r {value}: the files name each other", "remove one of the lines")
    _read(other, read_text(other), file, (*chain, other.resolve()))


def _line(line: str, here: str, folder: Path, *, editable: bool = False) -> Line:
    hashes = _HASH.findall(" " + line)
    text = _HASH.sub("", " " + line)
    text = re.sub(r"\s--(config-settings?|global-option|no-binary)[= ]\S+", "", text).strip()
    sha256 = set()
    for value in hashes:
        algorithm, _, digits = value.partition(":")
        if algorithm == "sha256":
            if not re.fullmatch(r"[0-9a-fA-F]{64}", digits):
                raise LockError(f"{here}: {value!r} is not a valid sha256", "write the hash again")
            sha256.add(digits.lower())
    if hashes and not sha256:
        raise LockError(
            f"{here}: {hashes[0].partition(':')[0]} hashes only; builder verifies sha256",
            "write the file again with sha256 hashes: pip-compile --generate-hashes, or uv export",
        )
    return Line(text, here, frozenset(sha256), editable, folder)


class Sorter:
    """Sorts lines into packages, sources and pins, for one target."""

    def __init__(self, path: Path, platform: str, python: str) -> None:
        self._environment = marker_environment(platform, python)
        self._maker = PackageMaker(path, platform)
        self.packages: list[LockedPackage] = []
        self.sources: list[ForeignSource] = []
        self.pinned: list[PinnedRequirement] = []
        self._places: dict[str, tuple[str, str]] = {}

    def add(self, line: Line) -> None:
        """Sorts one line; ignores it if its marker is false.

        Raises:
            LockError: it is not a requirement, or not pinned.
        """
        text, marker = _split_marker(line.text)
        if not self._applies(marker, line):
            return
        if line.editable or _is_path(text):
            url = re.sub(r"^file:(//)?", "", text)
            if url.startswith(("git+", "https://", "http://")):
                self._add_url(_name_of(url, line), url, line)
                return
            path, name = re.sub(r"\[[^\]]*\]$", "", url.partition("#")[0]), _egg(url)
            self.sources.append(
                ForeignSource("local", name, "", path, editable=line.editable, where=line.where)
            )
            return
        if re.match(r"(git\+|https?://)", text):
            self._add_url(_name_of(text, line), text, line)
            return
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError) as e:
            raise LockError(
                f"{line.where}: not a pip requirement: {redact(text)[:200]!r}", f"correct the line: {e}"
            ) from None
        name = canonicalize_name(requirement.name)
        if requirement.url:
            self._add_url(name, requirement.url, line)
            return
        self._pin(name, requirement, line)

    def _pin(self, name: str, requirement: Requirement, line: Line) -> None:
        specifiers = list(requirement.specifier)
        is_pin = len(specifiers) == 1 and specifiers[0].operator in ("==", "===")
        if not is_pin or specifiers[0].version.endswith(".*"):
            raise LockError(
                f"{line.where}: {redact(line.text)}: not pinned with ==, so this file is not a lock",
                "name it as the environment ('environment:' in the recipe), and builder lock pins it; or pin "
                "it: uv pip compile --generate-hashes FILE -o requirements.txt",
            )
        version = specifiers[0].version
        previous = self._places.get(name)
        if previous is not None:
            if previous[0] == version:
                return
            raise LockError(
                f"{line.where}: {name} is pinned to {version}, and to {previous[0]} in {previous[1]}",
                "remove one of the lines, or give them markers",
            )
        self._places[name] = (version, line.where)
        text = f"{name}{specifiers[0].operator}{version}"
        self.pinned.append(PinnedRequirement(name, version, line.sha256, text, line.where))

    def _applies(self, marker: str, line: Line) -> bool:
        if not marker:
            return True
        try:
            return Marker(marker).evaluate({**self._environment, "extra": ""})
        except (ValueError, UndefinedEnvironmentName, RecursionError) as e:
            raise LockError(
                f"{line.where}: the marker cannot be evaluated: {marker[:200]!r}", f"correct it: {e}"
            ) from None

    def _add_url(self, name: str, url: str, line: Line) -> None:
        plain, _, fragment = url.partition("#")
        values = dict(part.partition("=")[::2] for part in fragment.split("&"))
        sub = values.get("subdirectory", "")
        if plain.startswith("git+"):
            self.sources.append(_git(name, plain.removeprefix("git+"), sub, line))
            return
        hashes = line.sha256 or frozenset({values["sha256"]} if "sha256" in values else ())
        if plain.startswith("file:"):
            self.sources.append(
                ForeignSource("local", name, "", plain.removeprefix("file://"), where=line.where)
            )
        elif not plain.partition("?")[0].endswith(".whl"):
            sha256 = min(hashes) if len(hashes) == 1 else ""
            self.sources.append(
                ForeignSource("archive", name, "", plain, subdirectory=sub, sha256=sha256, where=line.where)
            )
        elif len(hashes) == 1:
            version = plain.rsplit("/", 1)[-1].split("-")[1:2]
            made = self._maker.make("pip", name, "".join(version), plain, sha256=min(hashes))
            self.packages.append(made)
        else:
            version = plain.rsplit("/", 1)[-1].split("-")[1:2]
            text = f"{name} @ {plain}"
            self.pinned.append(PinnedRequirement(name, "".join(version), hashes, text, line.where))


def _split_marker(text: str) -> tuple[str, str]:
    """Requirement and marker. In a URL only `` ;`` begins a marker, as in PEP 508."""
    separator = " ;" if "://" in text or _is_path(text) else ";"
    head, _, marker = text.partition(separator)
    return head.strip(), marker.strip()


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "file:")) or (
        "/" in text.partition("@")[0] and "://" not in text and not text.startswith("git+")
    )


def _egg(url: str) -> str:
    match = re.search(r"[#&]egg=([A-Za-z0-9._-]+)", url)
    return canonicalize_name(match[1]) if match else ""


def _name_of(url: str, line: Line) -> str:
    """The name in a URL without ``NAME @``: ``#egg=NAME``, or that of the wheel."""
    name = _egg(url)
    filename = url.partition("#")[0].rsplit("/", 1)[-1]
    if not name and filename.endswith(".whl"):
        name = canonicalize_name(filename.split("-")[0])
    if not name:
        raise LockError(
            f"{line.where}: the URL does not name its package: {redact(url)[:200]}", "write: NAME @ URL"
        )
    return name


def _git(name: str, url: str, subdirectory: str, line: Line) -> ForeignSource:
    """``https://host/repository@COMMIT``. The ``@`` of ``git@host`` is no revision."""
    head, separator, revision = url.rpartition("@")
    if not separator or ("/" in revision and not _COMMIT.search(revision)):
        head, revision = url, ""
    if not _COMMIT.fullmatch(revision):
        raise LockError(
            f"{line.where}: {name}: {redact(url)[:200]} names no commit, so this file is not a lock",
            "pin it: git+https://...@COMMIT (40 hex digits), or name the file as the environment",
        )
    return ForeignSource(
        "git",
        name,
        "",
        head,
        revision=revision,
        subdirectory=subdirectory,
        editable=line.editable,
        where=line.where,
    )
