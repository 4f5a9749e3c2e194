"""Reads the pip section of an environment file, and the requirements files that it names with ``-r``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.config.yamlfile import read_text
from builder.errors import ConfigError
from builder.lock.spec import Spec
from builder.redact import redact

#: Requirements files that one environment file may name, each counted as often as it is named.
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
}
_EDITABLE = ("-e", "--editable")
_GLUED = re.compile(r"(-[a-z])([^\s=-].*)")
#: A beginning; :func:`_wheel_hint` completes it.
_WHEEL_HINT = (
    "build its wheel: pip wheel --no-deps -w wheels {source}; then write '- --find-links wheels' and "
)
_OPTION_HINTS = {
    "-c": "write the constraints as requirements: NAME<=VERSION",
    "--constraint": "write the constraints as requirements: NAME<=VERSION",
    "--hash": "remove the hashes (uv export --no-hashes, pip-compile without --generate-hashes): "
    "builder's lock records the hash of every file",
    "--pre": "name the version that you want: NAME==2.0rc1",
    "--no-binary": "builder installs wheels only: remove the line",
    "--only-binary": "builder installs wheels only: remove the line",
    "--prefer-binary": "builder installs wheels only: remove the line",
    "--no-index": "set PIP_NO_INDEX=1 when you lock",
    "--trusted-host": "remove the line; a certificate is named by SSL_CERT_FILE",
    "-U": "remove the option: builder lock --update NAME updates a package",
    "--upgrade": "remove the option: builder lock --update NAME updates a package",
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
    files: int = 0
    """How many requirements files were read."""

    def read(self, text: str, where: str, chain: tuple[Path, ...] = ()) -> None:
        """Reads a requirement or an option.

        Args:
            text: as written.
            where: ``FILE:LINE``.
            chain: the requirements files that lead to this entry, the outermost first.

        Raises:
            ConfigError: it cannot be locked, or a requirements file is missing or wrong.
        """
        if text.startswith("-"):
            self._read_option(text, where, chain)
        else:
            self.specs.append(_requirement(text, where))

    def _read_option(self, text: str, where: str, chain: tuple[Path, ...]) -> None:
        name, value = split_option(text, where)
        if name in _EDITABLE:
            raise ConfigError(
                f"{where}: an editable package cannot be locked: {redact(text)}", _wheel_hint(value or ".")
            )
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
            self.links.append(link_from(value, chain[-1].parent, self.path.parent) if chain else value)
        else:
            self._read_file(value, where, chain)

    def _read_file(self, name: str, where: str, chain: tuple[Path, ...]) -> None:
        if "://" in name:
            raise ConfigError(
                f"{where}: -r {redact(name)}: a requirements file has to be on this machine",
                "download it, commit it beside the environment file, and name it there",
            )
        folder = chain[-1].parent if chain else self.path.parent
        path = Path(os.path.normpath(folder / name))
        if path in chain:
            raise ConfigError(f"{where}: -r {name}: {path} names itself", "remove one of the -r lines")
        self.files += 1
        if len(chain) >= MAX_NESTED or self.files > MAX_FILES:
            raise ConfigError(
                f"{where}: -r {name}: more than {MAX_NESTED} levels or {MAX_FILES} requirements files",
                "put the requirements into one file",
            )
        if not path.exists():
            raise ConfigError(
                f"{where}: -r {name}: {path} does not exist",
                f"correct the name; it is relative to {folder}",
            )
        check_inside(path, (self.root, self.path.parent), f"{where}: -r {name}")
        for number, line in requirement_lines(read_text(path, "requirements file")):
            self.read(line, f"{path}:{number}", (*chain, path))


def check_inside(path: Path, folders: Sequence[Path], where: str) -> None:
    """Raises ConfigError for a requirements file that is not below one of the folders, symlinks followed.

    Its lines are shown in messages, and those of ``/proc/self/environ`` are secrets.
    """
    real = path.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise ConfigError(
            f"{where}: {path} is outside of the project",
            f"copy the file into {folders[0]}, and name it there",
        )


def link_from(link: str, folder: Path, base: Path) -> str:
    """A link of ``--find-links`` in a file of ``folder``, as a file of the folder ``base`` writes it."""
    is_relative = "://" not in link and not link.startswith(("/", "~", "$"))
    return os.path.relpath(folder / link, base) if is_relative else link


def requirement_lines(text: str) -> Iterator[tuple[int, str]]:
    """The entries of a requirements file, without comments, and the lines at which they start.

    A ``\\`` at the end of a line continues it, but not at the end of a comment.
    """
    start, entry = 0, ""
    for number, line in enumerate(text.removeprefix("\N{BYTE ORDER MARK}").splitlines(), 1):
        if not entry:
            start = number
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
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
    """Returns the name of an option and its value (empty: there is none).

    Args:
        text: the option as written: ``-r FILE``, ``-rFILE``, ``--name VALUE`` or ``--name=VALUE``.
        where: ``FILE:LINE``.

    Raises:
        ConfigError: the option has several values, or a quotation mark that is not closed.
    """
    if glued := _GLUED.fullmatch(text):
        text = f"{glued[1]} {glued[2]}"
    try:
        words = shlex.split(text.replace("=", " ", 1) if text.startswith("--") else text, comments=True)
    except ValueError as e:
        raise ConfigError(f"{where}: {redact(text)!r}: {e}", "check the quotation marks") from None
    if len(words) > 2:
        raise ConfigError(
            f"{where}: {words[0]}: not supported here with {len(words) - 1} values",
            "write one option with one value per line",
        )
    return words[0], words[1] if len(words) == 2 else ""


def _requirement(text: str, where: str) -> Spec:
    text = re.split(r"\s#", text)[0].strip()
    if " --hash" in text:
        raise ConfigError(f"{where}: --hash: not supported here", _OPTION_HINTS["--hash"])
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError) as e:  # packaging's parser of markers is recursive
        problem = redact(str(e).splitlines()[0])
        raise ConfigError(
            f"{where}: {redact(text)!r} is not a pip requirement: {problem}", _requirement_hint(text)
        ) from None
    if requirement.url and not is_wheel_on_web(requirement.url):
        raise ConfigError(
            f"{where}: {redact(text)!r} is not the URL of a wheel on the web, and nothing else can be locked",
            _wheel_hint(redact(requirement.url), requirement.name),
        )
    return Spec(" ".join(text.split()), canonicalize_name(requirement.name), where)


def _requirement_hint(text: str) -> str:
    """What to write instead of a text that is not a requirement."""
    if text.startswith(("git+", "hg+", ".", "/", "~", "file:")) or "://" in text:
        return _wheel_hint(redact(text))
    single = re.fullmatch(r"([A-Za-z][\w.-]*)\s*=\s*([\w.*+!-]+)", text)
    if single:  # conda's form
        version = single[2]
        is_part = version.count(".") < 2 and not version.endswith("*")
        return f"pip compares with two equals signs: {single[1]}=={version}{'.*' if is_part else ''}"
    if re.search(r"=[<>]|[<>=!~] +=", text):
        correct = re.sub(r"([<>=!~]) +=", r"\1=", text)
        return "write " + re.sub(r"=([<>])", r"\1=", correct)
    if text.startswith(("pip install ", "pip3 install ")):
        return f"write the requirement alone: {text.split('install ', 1)[1]}"
    return "write NAME, NAME==VERSION or NAME @ URL-OF-A-WHEEL"


def _wheel_hint(source: str, name: str = "NAME") -> str:
    return _WHEEL_HINT.format(source=source) + f"'- {name}' in the pip section"


def is_wheel_on_web(url: str) -> bool:
    """Whether a URL is that of a wheel on the web, the only kind of URL that can be locked."""
    return url.startswith(("http://", "https://")) and url.partition("#")[0].endswith(".whl")
