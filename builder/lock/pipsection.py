"""Reads the pip section of an environment file, and the files that it names with ``-r`` and
``-c``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.config.fields import line
from builder.config.inside import check_inside
from builder.config.yamlfile import read_text
from builder.errors import ConfigError
from builder.lock.sourcespec import SpecContext, names_source, read_location, read_named
from builder.lock.spec import Environment, SourceSpec, Spec
from builder.redact import redact

#: Files that one environment file may name with ``-r`` and ``-c``, each counted as often as it is named.
MAX_FILES = 100
#: Levels of requirements files that name each other.
MAX_NESTED = 10

_OPTIONS = {
    "-i": "index",
    "--index-url": "index",
    "--extra-index-url": "extra",
    "-f": "links",
    "--find-links": "links",
    "-r": "file",
    "--requirement": "file",
    "-c": "constraints",
    "--constraint": "constraints",
    "-e": "editable",
    "--editable": "editable",
    "--no-binary": "no-binary",
    "--only-binary": "only-binary",
}
#: Options without a value that change nothing: builder prefers wheels, and verifies each file by its hash.
_IGNORED = ("--prefer-binary", "--require-hashes")
#: The same in a lock, whose requirements have one version each.
_IGNORED_IN_LOCKS = (
    *("--no-deps", "--pre", "--only-binary", "--no-binary", "-c", "--constraint", "--no-index"),
    *("--trusted-host", "--use-feature", "--no-build-isolation"),
)
_EDITABLE = re.compile(r"(-e|--editable)([\s=]+|(?<=-e)(?=\S)|$)")
_GLUED = re.compile(r"(-[a-z])([^\s=-].*)")
#: Options of one requirement: ``NAME==1.0 --hash=sha256:... --hash=sha256:...``.
_HASH = re.compile(r"\s--hash(?:=|\s+)(\S+)")
_ANY_HASH = re.compile(r"(sha256|sha384|sha512):([0-9a-f]{64,128})")
_OPTION_HINTS = {
    "--no-deps": "remove --no-deps: builder always locks the dependencies of packages, too",
    "--pre": "name the version that you want: NAME==2.0rc1",
    "--no-index": "set PIP_NO_INDEX=1 when you lock",
    "--trusted-host": "remove the line; a certificate is named by SSL_CERT_FILE",
    "--config-settings": "write settings of a build into the recipe: pip: {build: {NAME: {env: {...}}}}",
}


@dataclass
class PipSection:
    """The content of a pip section; :meth:`read` adds one entry to it."""

    path: Path
    """The environment file."""
    root: Path
    """The project folder, in which requirements files are."""
    specs: list[Spec] = field(default_factory=list)
    index: str | None = None
    extra_indexes: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """URLs, or folders relative to the folder of the environment file."""
    is_lock: bool = False
    """Whether a tool wrote the entries: options that change nothing in a lock are ignored."""
    files: int = 0
    """How many requirements files were read."""

    sources: list[SourceSpec] = field(default_factory=list)
    constraints: list[Spec] = field(default_factory=list)
    no_binary: list[str] = field(default_factory=list)
    only_binary: list[str] = field(default_factory=list)

    def read(
        self, text: str, where: str, chain: tuple[Path, ...] = (), *, limits: bool = False
    ) -> None:
        """Read a requirement or an option.

        Args:
            text: as written.
            where: ``FILE:LINE``.
            chain: the requirements files that lead to this entry, the outermost first.
            limits: whether the entry is one of a constraints file.

        Raises:
            ConfigError: it cannot be locked, or a requirements file is missing or wrong.
        """
        text = plain_value(text, where)
        if text.startswith("-"):
            self._read_option(text, where, chain, limits)
            return
        self._add(self._requirement(text, self._place(where, chain)), where, limits)

    def environment(
        self, channels: Sequence[str], conda: Sequence[Spec], name: str = ""
    ) -> Environment:
        """Return the environment of the section and of the conda packages beside it."""
        return Environment(
            self.path,
            name,
            tuple(dict.fromkeys(channels)),
            tuple(conda),
            tuple(self.specs),
            self.index,
            tuple(dict.fromkeys(self.extra_indexes)),
            tuple(dict.fromkeys(self.links)),
            tuple(self.sources),
            tuple(self.constraints),
            tuple(dict.fromkeys(self.no_binary)),
            tuple(dict.fromkeys(self.only_binary)),
        )

    def add_index(self, url: str, where: str) -> None:
        """Add an extra index. Raises ConfigError if it is not one line."""
        self.extra_indexes.append(plain_value(url, where))

    def _add(self, found: Spec | SourceSpec, where: str, limits: bool) -> None:
        if limits:
            self._add_constraint(found, where)
        elif isinstance(found, SourceSpec):
            self.sources.append(found)
        else:
            self.specs.append(found)

    def _add_constraint(self, found: Spec | SourceSpec, where: str) -> None:
        if isinstance(found, SourceSpec) or Requirement(found.text).extras:
            raise ConfigError(
                f"{where}: {redact(found.text)} is not a constraint",
                "a constraints file limits versions: NAME<2; move the line into the requirements",
            )
        self.constraints.append(found)

    def _read_option(self, text: str, where: str, chain: tuple[Path, ...], limits: bool) -> None:
        option = re.split(r"[\s=]", text)[0]
        if option in _IGNORED or (self.is_lock and option in _IGNORED_IN_LOCKS):
            return
        if editable := _EDITABLE.match(text):
            # not split as the other options: extras and a marker may follow
            value = text[editable.end() :].strip("'\" ")
            self._add(self._editable(text, value, self._place(where, chain)), where, limits)
            return
        name, value = split_option(text, where)
        kind = _OPTIONS.get(name)
        if kind is None or not value:
            known = f"supported options, each with one value: {', '.join(_OPTIONS)}"
            raise ConfigError(
                f"{where}: {name}: not supported here",
                _OPTION_HINTS.get(name, known) if kind is None else f"write a value: {name} VALUE",
            )
        if kind == "index":
            self.index = value
        elif kind == "extra":
            self.extra_indexes.append(value)
        elif kind == "links":
            self.links.append(
                link_from(value, chain[-1].parent, self.path.parent) if chain else value
            )
        elif kind == "no-binary":
            _choose(value, self.no_binary)
        elif kind == "only-binary":
            _choose(value, self.only_binary)
        else:
            self._read_file(name, value, where, chain, limits or kind == "constraints")

    def _editable(self, text: str, value: str, place: SpecContext) -> SourceSpec:
        found = read_location(_plain(value), place, editable=True) if value else None
        if not isinstance(found, SourceSpec):
            raise ConfigError(
                f"{place.where}: {redact(text)} names no folder or repository",
                "write -e FOLDER, such as -e .",
            )
        return replace(found, text=_plain(text))

    def _place(self, where: str, chain: tuple[Path, ...]) -> SpecContext:
        folder, root = (Path(os.path.normpath(p.absolute())) for p in (self.path.parent, self.root))
        return SpecContext(where, folder, root, chain[-1].parent.absolute() if chain else None)

    def _requirement(self, text: str, place: SpecContext) -> Spec | SourceSpec:
        bare = re.split(r"\s#", text)[0]
        hashes = tuple(_hash(value, place.where) for value in _HASH.findall(bare))
        bare = _plain(_HASH.sub(" ", bare))
        if option := re.search(r"\s(--[a-z-]+)", bare):
            raise ConfigError(
                f"{place.where}: {option[1]}: not supported here",
                _OPTION_HINTS.get(option[1], "remove the option"),
            )
        found = self._parsed(bare, place)
        if isinstance(found, Spec):
            return replace(found, hashes=hashes)
        sha256 = [value.removeprefix("sha256:") for value in hashes if value.startswith("sha256:")]
        if found.kind == "archive" and hashes and not found.sha256:
            if len(sha256) != 1:
                raise ConfigError(
                    f"{place.where}: {redact(bare)}: {len(sha256)} hashes with sha256 for one archive",
                    "write one --hash=sha256:HASH",
                )
            return replace(found, sha256=sha256[0])
        return found

    def _parsed(self, text: str, place: SpecContext) -> Spec | SourceSpec:
        if names_source(text):
            return read_location(text, place)
        try:
            requirement = Requirement(text)
        except (
            InvalidRequirement,
            RecursionError,
        ) as e:  # packaging's parser of markers is recursive
            problem = redact(str(e).splitlines()[0])
            raise ConfigError(
                f"{place.where}: {redact(text)!r} is not a pip requirement: {problem}",
                _requirement_hint(text),
            ) from None
        if requirement.url and not _is_wheel_on_web(requirement.url):
            return read_named(requirement, text, place)
        return Spec(text, canonicalize_name(requirement.name), place.where)

    def _read_file(
        self, option: str, name: str, where: str, chain: tuple[Path, ...], limits: bool
    ) -> None:
        """Read the file that ``-r`` or ``-c`` names."""
        what = "a constraints file" if limits else "a requirements file"
        shown = f"{where}: {option} {redact(name)}"
        if "://" in name:
            raise ConfigError(
                f"{shown}: {what} has to be on this machine", _download_hint(option, name)
            )
        folder = chain[-1].parent if chain else self.path.parent
        path = Path(os.path.normpath(folder / name))
        if path in chain:
            raise ConfigError(f"{shown}: {path} names itself", "remove one of the -r lines")
        self.files += 1
        if len(chain) >= MAX_NESTED or self.files > MAX_FILES:
            raise ConfigError(
                f"{shown}: more than {MAX_NESTED} levels or {MAX_FILES} requirements files",
                "put the requirements into one file",
            )
        if not path.exists():
            raise ConfigError(
                f"{shown}: {path} does not exist",
                f"correct the name; it is relative to {folder}",
            )
        check_inside(path, (self.root, self.path.parent), shown)
        for number, text in requirement_lines(read_text(path, what.removeprefix("a "))):
            self.read(text, f"{path}:{number}", (*chain, path), limits=limits)


def plain_value(text: str, where: str) -> str:
    """Return a value of an environment file without blanks around it, and with blanks for tabs.

    YAML and TOML have line breaks in texts, and other programs read what is behind one as a line of
    its own.

    Args:
        text: the value.
        where: ``FILE:LINE`` or ``FILE: KEY``.

    Raises:
        ConfigError: it has a line break or another control character.
    """
    text = text.strip().replace("\t", " ")
    try:
        return line(text)
    except ValueError as e:
        raise ConfigError(f"{where}: {redact(text)!r} {e}", "write one value on one line") from None


def link_from(link: str, folder: Path, base: Path) -> str:
    """Return a link of ``--find-links`` in a file of ``folder``, as a file of the folder ``base``
    writes it.
    """
    is_relative = "://" not in link and not link.startswith(("/", "~", "$"))
    return os.path.relpath(folder / link, base) if is_relative else link


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the entries of a requirements file, without comments, and the lines at which they
    start.

    A ``\\`` at the end of a line continues it, but not at the end of a comment.
    """
    start, entry = 0, ""
    for number, raw in enumerate(text.removeprefix("\N{BYTE ORDER MARK}").splitlines(), 1):
        if not entry:
            start = number
        bare = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if bare.endswith("\\"):
            entry += bare[:-1] + " "
            continue
        entry = (entry + bare).strip()
        if entry:
            yield start, entry
        entry = ""
    if entry.strip():
        yield start, entry.strip()


def split_option(text: str, where: str) -> tuple[str, str]:
    """Return the name of an option and its value (empty: there is none).

    Args:
        text: the option as written: ``-r FILE``, ``-rFILE``, ``--name VALUE`` or ``--name=VALUE``.
        where: ``FILE:LINE``.

    Raises:
        ConfigError: the option has several values, or a quotation mark that is not closed.
    """
    if glued := _GLUED.fullmatch(text):
        text = f"{glued[1]} {glued[2]}"
    try:
        words = shlex.split(
            text.replace("=", " ", 1) if text.startswith("--") else text, comments=True
        )
    except ValueError as e:
        raise ConfigError(f"{where}: {redact(text)!r}: {e}", "check the quotation marks") from None
    if len(words) > 2:
        hints = [_OPTION_HINTS.get(words[2], "write one option with one value per line")]
        if _OPTIONS.get(words[0]) in ("file", "constraints") and "://" in words[1]:
            hints.append(_download_hint(words[0], words[1]))
        raise ConfigError(
            f"{where}: {redact(text)}: {words[2]} is not supported here", "; ".join(hints)
        )
    return words[0], words[1] if len(words) == 2 else ""


def _download_hint(option: str, url: str) -> str:
    """Return what to write instead of the URL of a requirements file, which may change at any
    time.
    """
    name = url.partition("?")[0].rpartition("/")[2] or "requirements.txt"
    return f"download the file beside the one that names it, commit it, and write {option} {name}"


def _plain(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def _choose(value: str, names: list[str]) -> None:
    """Add the names of ``--no-binary`` or ``--only-binary``; ``:none:`` removes those before it."""
    for word in value.split(","):
        if word.strip() == ":none:":
            names.clear()
        elif word.strip():
            names.append(
                word.strip() if word.strip() == ":all:" else canonicalize_name(word.strip())
            )


def _hash(value: str, where: str) -> str:
    text = value.strip("'\"").lower()
    if not _ANY_HASH.fullmatch(text):
        raise ConfigError(
            f"{where}: --hash={value} is not a hash", "write --hash=sha256: and 64 hex digits"
        )
    return text


def _requirement_hint(text: str) -> str:
    """Return what to write instead of a text that is not a requirement."""
    single = re.fullmatch(r"([A-Za-z][\w.-]*)\s*=\s*([\w.*+!-]+)", text)
    if single:  # conda's form
        version = single[2]
        is_part = version.count(".") < 2 and not version.endswith("*")
        return (
            f"pip compares with two equals signs: {single[1]}=={version}{'.*' if is_part else ''}"
        )
    return "write NAME, NAME==VERSION, NAME @ URL, git+https://HOST/REPOSITORY@REVISION or ./FOLDER"


def _is_wheel_on_web(url: str) -> bool:
    """Return whether a URL is that of a wheel on the web, which is locked as it is; others are
    built first.
    """
    return url.startswith(("http://", "https://")) and url.partition("#")[0].endswith(".whl")
