"""What a project requires, and how it is read from ``requirements.txt``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.config.yamlfile import read_text
from builder.errors import ConfigError
from builder.lock.pipsection import MAX_FILES, MAX_NESTED, check_inside

#: Options of a requirements file that an environment file can have, by their short names.
_KEPT = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
}
_FILE_OPTIONS = ("-r", "--requirement")


@dataclass
class Requirements:
    """What a project requires; lists grow while its files are read."""

    origin: Path
    """The file that was read."""
    python: str = ""
    """A version specifier of PEP 440, such as ``>=3.11``; empty: unknown."""
    channels: list[str] = field(default_factory=list)
    conda: list[str] = field(default_factory=list)
    """Conda specs."""
    pip: list[str] = field(default_factory=list)
    """Requirements of pip."""
    options: list[str] = field(default_factory=list)
    """Options of the pip section, such as ``--extra-index-url URL``."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What an environment file cannot have, and why."""
    notes: list[str] = field(default_factory=list)
    """What else the user has to know."""
    is_file: bool = False
    """Whether the pip section can name the file itself (``-r``): it has nothing that must be changed."""
    files: int = 0
    """How many requirements files were read."""

    def add_pip(self, text: str) -> None:
        """Adds a requirement of pip, to :attr:`left_out` if it cannot be locked."""
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):  # packaging's parser of markers is recursive
            self.left_out.append((text, "not a requirement with a name; local packages cannot be locked"))
            return
        url = requirement.url or ""
        if url and not (url.startswith(("http://", "https://")) and url.partition("#")[0].endswith(".whl")):
            self.left_out.append((text, "only wheels can be locked, and this is none"))
        else:
            self.pip.append(text)

    def add_option(self, option: str) -> None:
        """Adds an option of the pip section, once."""
        if option not in self.options:
            self.options.append(option)


def read_requirements(path: Path, root: Path | None = None) -> Requirements:
    """Reads a requirements file, and those that it includes.

    Args:
        path: the file.
        root: the project folder, in which the others are; None: the folder of the file.

    Raises:
        ConfigError: a file does not exist or is not in the project, files include each other in a circle, or
            there are too many.
    """
    if root is not None and path.absolute().is_relative_to(root.absolute()):
        check_inside(path, (root,), "a symlink")
    found = Requirements(path, is_file=True)
    _read(path, found, (root or path.parent, path.parent), 0)
    found.is_file = found.is_file and not found.left_out
    return found


def _read(path: Path, found: Requirements, folders: Sequence[Path], depth: int) -> None:
    if depth > MAX_NESTED:
        raise ConfigError(f"{path}: requirements files include each other", "remove one of the -r lines")
    found.files += 1
    if found.files > MAX_FILES:
        raise ConfigError(
            f"{path}: more than {MAX_FILES} requirements files", "put the requirements into one file"
        )
    for line in _lines(read_text(path, "requirements file")):
        if not line.startswith("-"):
            bare = re.split(r"\s--hash[= ]", line)[0].strip()
            found.is_file = found.is_file and bare == line
            found.add_pip(bare)
            continue
        option, value = _option(line)
        if option in _FILE_OPTIONS and value:
            other = path.parent / value
            check_inside(other, folders, f"{path}: {option} {value}")
            _read(other, found, folders, depth + 1)
        elif option in _KEPT and value:
            found.add_option(f"{_KEPT[option]} {_place(value, path, found.origin)}")
        else:
            found.left_out.append((line, _why_not(option)))


def _lines(text: str) -> Iterator[str]:
    """The lines without comments, with continuations joined."""
    joined = re.sub(r"\\\r?\n", " ", text.removeprefix("\N{BYTE ORDER MARK}"))
    for line in joined.splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if bare:
            yield bare


def _option(line: str) -> tuple[str, str]:
    try:
        words = shlex.split(line.replace("=", " ", 1) if line.startswith("--") else line)
    except ValueError:
        return line, ""
    if len(words) == 1 and len(line) > 2 and not line.startswith("--"):
        return line[:2], line[2:].strip()  # -rother.txt
    return words[0], words[1] if len(words) == 2 else ""


def _place(value: str, path: Path, origin: Path) -> str:
    """A value of an option; folders start at the file that names them, here at ``origin``."""
    if "://" in value or Path(value).is_absolute() or path.parent == origin.parent:
        return value
    return str(path.parent / value)


def _why_not(option: str) -> str:
    if option in ("-e", "--editable"):
        return "an editable package cannot be locked; its code is in the image if files: lists it"
    if option in ("-c", "--constraint"):
        return "constraints files are not supported: write the versions into the requirements"
    return "this option is not supported"
