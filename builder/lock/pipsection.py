"""Reads the pip section of an environment file, and the files that ``-r`` and ``-c`` name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.core.datafiles import table
from builder.core.errors import ConfigError
from builder.core.redact import redact
from builder.formats.trees.inside import check_inside

from .config.fields import line
from .config.yamlfile import read_text
from .sourcespec import SpecContext, names_source, read_location, read_named
from .spec import Environment, IndexPin, SourceSpec, Spec

#: Files that one environment file may name with ``-r`` and ``-c``, repetitions counted.
MAX_FILES = 100
#: Levels of requirements files that name each other.
MAX_NESTED = 10

#: The options of pip, see the file.
_RULES = "pipoptions.yaml"
_EDITABLE = re.compile(r"(-e|--editable)([\s=]+|(?<=-e)(?=\S)|$)")
_GLUED = re.compile(r"(-[a-z])([^\s=-].*)")
#: Options of one requirement: ``NAME==1.0 --hash=sha256:... --hash=sha256:...``.
_HASH = re.compile(r"\s--hash(?:=|\s+)(\S+)")
_ANY_HASH = re.compile(r"(sha256|sha384|sha512):([0-9a-f]{64,128})")


@dataclass
class PipSection:
    """The entries of an environment file; :meth:`read` adds one of its pip section.

    The fields with names of :class:`builder.lock.spec.Environment` are those of the result.
    """

    path: Path
    """The environment file."""
    root: Path
    """The project folder, in which requirements files are."""
    is_lock: bool = False
    """Whether a tool wrote the entries: options that change nothing in a lock are ignored."""
    files: int = 0
    """How many requirements files were read."""

    name: str = ""
    channels: list[str] = field(default_factory=list)
    conda: list[Spec] = field(default_factory=list)
    pip: list[Spec] = field(default_factory=list)
    index_url: str | None = None
    extra_index_urls: list[str] = field(default_factory=list)
    find_links: list[str] = field(default_factory=list)
    sources: list[SourceSpec] = field(default_factory=list)
    constraints: list[Spec] = field(default_factory=list)
    no_binary: list[str] = field(default_factory=list)
    only_binary: list[str] = field(default_factory=list)
    pins: list[IndexPin] = field(default_factory=list)
    limits: list[Spec] = field(default_factory=list)
    virtual_packages: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    exclude_newer: str = ""
    uv: dict[str, Any] = field(default_factory=dict)

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
        folder, root = (Path(os.path.normpath(p.absolute())) for p in (self.path.parent, self.root))
        context = SpecContext(where, folder, root, chain, limits, self.is_lock)
        if text.startswith("-"):
            self._read_option(text, context)
        else:
            self._add(_requirement(text, context), context)

    def environment(self) -> Environment:
        """Return the environment of all entries, without repetitions."""
        values = {one.name: getattr(self, one.name) for one in fields(Environment)}
        lists = {name: tuple(dict.fromkeys(v)) for name, v in values.items() if isinstance(v, list)}
        return Environment(**{**values, **lists})

    def _add(self, found: Spec | SourceSpec, context: SpecContext) -> None:
        if context.limits:
            if isinstance(found, SourceSpec) or Requirement(found.text).extras:
                raise context.error(
                    f"{redact(found.text)} is not a constraint",
                    "a constraints file limits versions: NAME<2; "
                    "move the line into the requirements",
                )
            self.constraints.append(found)
        elif isinstance(found, SourceSpec):
            self.sources.append(found)
        else:
            self.pip.append(found)

    def _read_option(self, text: str, context: SpecContext) -> None:
        ignored = _rule(re.split(r"[\s=]", text)[0]).get("ignored")
        if ignored == "always" or (self.is_lock and ignored):
            return
        if editable := _EDITABLE.match(text):
            # not split as the other options: extras and a marker may follow
            bare = re.sub(r"""^(['"])(.*)\1$""", r"\2", text[editable.end() :].strip())
            self._add(_editable(text, bare.strip(), context), context)
            return
        name, value = _split_option(text, context)
        rule = _rule(name)
        if "read" in rule and value:
            self._apply_option(name, value, context)
            return
        known = [option for option, one in table(__file__, _RULES).items() if "read" in one]
        hint = f"supported options, each with one value: {', '.join(known)}"
        if "read" in rule:
            hint = f"write a value: {name} VALUE"
        raise context.error(f"{name}: not supported here", rule.get("hint", hint))

    def _apply_option(self, name: str, value: str, context: SpecContext) -> None:
        match _rule(name)["read"]:
            case "index":
                check_url(value, context.where)
                self.index_url = value
            case "extra":
                check_url(value, context.where)
                self.extra_index_urls.append(value)
            case "links":
                is_relative = "://" not in value and not value.startswith(("/", "~", "$"))
                if context.chain and is_relative:
                    value = os.path.relpath(context.chain[-1].parent / value, self.path.parent)
                self.find_links.append(value)
            case "no-binary":
                _choose(value, self.no_binary)
            case "only-binary":
                _choose(value, self.only_binary)
            case _:
                self._read_file(name, value, context)

    def _read_file(self, option: str, name: str, context: SpecContext) -> None:
        """Read the file that ``-r`` or ``-c`` names."""
        limits, chain = context.limits or _rule(option)["read"] == "constraints", context.chain
        what = "a constraints file" if limits else "a requirements file"
        shown = f"{option} {redact(name)}"
        if "://" in name:
            hint = _download_hint(option, name)
            raise context.error(f"{shown}: {what} has to be on this machine", hint)
        folder = chain[-1].parent if chain else self.path.parent
        path = Path(os.path.normpath(folder / name))
        if path in chain:
            raise context.error(f"{shown}: {path} names itself", "remove one of the -r lines")
        self.files += 1
        if len(chain) >= MAX_NESTED or self.files > MAX_FILES:
            raise context.error(
                f"{shown}: more than {MAX_NESTED} levels or {MAX_FILES} requirements files",
                "put the requirements into one file",
            )
        if not path.exists():
            hint = f"correct the name; it is relative to {folder}"
            raise context.error(f"{shown}: {path} does not exist", hint)
        check_inside(path, (self.root, self.path.parent), f"{context.where}: {shown}")
        for number, text in requirement_lines(read_text(path, what.removeprefix("a "))):
            self.read(text, f"{path}:{number}", (*chain, path), limits=limits)


def _rule(option: str) -> dict[str, str]:
    """Return what builder does with an option of pip; nothing for an unknown one."""
    return dict(table(__file__, _RULES).get(option, {}))


def _editable(text: str, location: str, context: SpecContext) -> SourceSpec:
    found = _without_hashes(_plain(location), context) if location else None
    if not isinstance(found, SourceSpec):
        problem = f"{redact(text)} names no folder or repository"
        raise context.error(problem, "write -e FOLDER, such as -e .")
    return replace(found, text=_plain(text), editable=True)


def _requirement(text: str, context: SpecContext) -> Spec | SourceSpec:
    bare = re.split(r"\s#", text)[0]
    hashes = tuple(_hash(value, context) for value in _HASH.findall(bare))
    bare = _plain(_HASH.sub(" ", bare))
    if option := re.search(r"\s(--[a-z-]+)", bare):
        hint = _rule(option[1]).get("hint", "remove the option")
        raise context.error(f"{option[1]}: not supported here", hint)
    found = _without_hashes(bare, context)
    if isinstance(found, Spec):
        return replace(found, hashes=hashes)
    if found.kind != "archive" or not hashes or found.sha256:
        return found
    sha256 = [value.removeprefix("sha256:") for value in hashes if value.startswith("sha256:")]
    if len(sha256) != 1:
        problem = f"{redact(bare)}: {len(sha256)} hashes with sha256 for one archive"
        raise context.error(problem, "write one --hash=sha256:HASH")
    return replace(found, sha256=sha256[0])


def _without_hashes(text: str, context: SpecContext) -> Spec | SourceSpec:
    if names_source(text):
        return read_location(text, context)
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError) as e:  # its parser of markers is recursive
        problem = f"{redact(text)!r} is not a pip requirement: {redact(str(e).splitlines()[0])}"
        raise context.error(problem, _requirement_hint(text)) from None
    url = requirement.url or ""
    # a wheel on the web is locked as it is; others are built first
    if url.startswith(("http://", "https://")) and url.partition("#")[0].endswith(".whl"):
        url = ""
    if url:
        return read_named(requirement, text, context)
    return Spec(text, canonicalize_name(requirement.name), context.where)


def plain_value(text: str, where: str) -> str:
    """Return a value of an environment file without blanks around it, and with blanks for tabs.

    YAML and TOML have line breaks in texts, and other programs read the rest as a new line.

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


def check_url(text: str, where: str) -> None:
    """Raise ConfigError for an index that is a folder; a variable may contain a whole URL."""
    if "://" not in text and "$" not in text:
        hint = "name a folder of wheels by find-links, or write file:///FOLDER"
        raise ConfigError(f"{where}: the index {redact(text)!r} is no URL", hint)


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the entries of a requirements file, without comments, each after its first line.

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


def _split_option(text: str, context: SpecContext) -> tuple[str, str]:
    """Return the name of an option and its value (empty: there is none).

    Args:
        text: the option as written: ``-r FILE``, ``-rFILE``, ``--name VALUE`` or ``--name=VALUE``.
        context: where it is written.

    Raises:
        ConfigError: the option has several values, or a quotation mark that is not closed.
    """
    if glued := _GLUED.fullmatch(text):
        text = f"{glued[1]} {glued[2]}"
    bare = text.replace("=", " ", 1) if text.startswith("--") else text
    try:
        words = shlex.split(bare, comments=True)
    except ValueError as e:
        raise context.error(f"{redact(text)!r}: {e}", "check the quotation marks") from None
    if len(words) > 2:
        hints = [_rule(words[2]).get("hint", "write one option with one value per line")]
        if _rule(words[0]).get("read") in ("file", "constraints") and "://" in words[1]:
            hints.append(_download_hint(words[0], words[1]))
        raise context.error(f"{redact(text)}: {words[2]} is not supported here", "; ".join(hints))
    return words[0], words[1] if len(words) == 2 else ""


def _download_hint(option: str, url: str) -> str:
    """Return the hint for the URL of a requirements file, which may change at any time."""
    name = url.partition("?")[0].rpartition("/")[2] or "requirements.txt"
    return f"download the file beside the one that names it, commit it, and write {option} {name}"


def _plain(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def _choose(value: str, names: list[str]) -> None:
    """Add the names of ``--no-binary`` or ``--only-binary``; ``:none:`` removes those before it."""
    for word in filter(None, map(str.strip, value.split(","))):
        if word == ":none:":
            names.clear()
        else:
            names.append(word if word == ":all:" else canonicalize_name(word))


def _hash(value: str, context: SpecContext) -> str:
    text = value.strip("'\"").lower()
    if not _ANY_HASH.fullmatch(text):
        hint = "write --hash=sha256: and 64 hex digits"
        raise context.error(f"--hash={value} is not a hash", hint)
    return text


def _requirement_hint(text: str) -> str:
    """Return the hint for a text that is not a requirement."""
    if single := re.fullmatch(r"([A-Za-z][\w.-]*)\s*=\s*([\w.*+!-]+)", text):  # conda's form
        name, version = single.groups()
        if version.count(".") < 2 and not version.endswith("*"):
            version += ".*"
        return f"pip compares with two equals signs: {name}=={version}"
    if re.fullmatch(r"\w[\w.-]*=[\w.!+]+=\w+", text):
        other = "conda list --explicit > explicit.txt && builder init --from explicit.txt"
        return f"conda list --export wrote this; builder reads: {other}; or write NAME==VERSION for pip"
    return "write NAME, NAME==VERSION, NAME @ URL, git+https://HOST/REPOSITORY@REVISION or ./FOLDER"
