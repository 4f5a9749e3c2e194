"""What a project requires, and how it is read from ``requirements.txt``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from builder.config.inside import check_inside
from builder.config.yamlfile import read_text
from builder.errors import ConfigError
from builder.lock.pipsection import (
    MAX_FILES,
    MAX_NESTED,
    link_from,
    requirement_lines,
    split_option,
)
from builder.lock.sourcespec import Place, names_source, read_location
from builder.lock.spec import SourceSpec

#: Options of a requirements file that an environment file can have, by their short names.
_KEPT = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
    "-c": "--constraint",
    "--constraint": "--constraint",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
}
#: Of these, the ones whose value is a path or URL.
_PLACES = ("--find-links", "--constraint")
#: Options that change nothing in an environment.
_IGNORED = ("--prefer-binary", "--require-hashes")
_EDITABLE = ("-e", "--editable")
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
    """Options of the pip section, such as ``--extra-index-url URL``; folders are relative to the project."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """What an environment file cannot have, and why."""
    notes: list[str] = field(default_factory=list)
    """What else the user has to know."""
    is_file: bool = False
    """Whether the pip section can name the requirements file itself (``-r``), because nothing in it has to
    change."""
    files: int = 0
    """How many requirements files were read."""
    root: Path | None = None
    """The project folder; None: the folder of the file that was read."""

    def add_pip(self, text: str) -> None:
        """Adds a requirement of pip, to :attr:`left_out` if it cannot be locked."""
        if names_source(text):
            self.add_source(text)
            return
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):  # packaging's parser of markers is recursive
            self.left_out.append((text, "not a requirement of pip"))
            return
        if requirement.url and requirement.url.startswith("file:"):
            self.left_out.append((text, "names a file of one machine"))
        else:
            self.pip.append(text)

    def add_source(self, text: str, folder: Path | None = None, *, editable: bool = False) -> None:
        """Adds a repository, an archive or a folder of the project; to :attr:`left_out` if it cannot be
        locked.

        Args:
            text: the requirement, without ``-e``.
            folder: where a path starts; None: in the folder of the file that was read.
            editable: whether it followed ``-e``.
        """
        root = Path(os.path.normpath((self.root or self.origin.parent).absolute()))
        place = Place("", Path(os.path.normpath((folder or self.origin.parent).absolute())), root)
        option = "-e " if editable else ""
        try:
            found = read_location(text, place, editable=editable)
        except ConfigError as e:
            self.left_out.append((option + text, e.message.removeprefix(": ")))
            return
        is_local = isinstance(found, SourceSpec) and "://" not in found.url
        self.pip.append(option + (found.shown if is_local and isinstance(found, SourceSpec) else text))

    def add_option(self, option: str) -> None:
        """Adds an option of the pip section, once."""
        if option not in self.options:
            self.options.append(option)


def read_requirements(path: Path, root: Path | None = None) -> Requirements:
    """Reads a requirements file, and those that it includes.

    Args:
        path: the file.
        root: the project folder, where the environment file will be; None: the folder of the file.

    Raises:
        ConfigError: a file does not exist or is not in the project, files include each other in a circle, or
            there are too many.
    """
    root = (root or path.parent).absolute()
    is_below = path.absolute().is_relative_to(root)
    found = Requirements(path, is_file=is_below, root=root)
    _read(path, found, (root, path.parent), 0)
    found.is_file = found.is_file and not found.left_out
    return found


def _read(path: Path, found: Requirements, folders: Sequence[Path], depth: int) -> None:
    """Reads one file; ``folders`` are those in which others may be, the project folder first."""
    if depth > MAX_NESTED:
        raise ConfigError(f"{path}: requirements files include each other", "remove one of the -r lines")
    found.files += 1
    if found.files > MAX_FILES:
        raise ConfigError(
            f"{path}: more than {MAX_FILES} requirements files", "put the requirements into one file"
        )
    for _, line in requirement_lines(read_text(path, "requirements file")):
        if not line.startswith("-"):
            bare = re.split(r"\s--hash[= ]", line)[0].strip()
            if names_source(bare):
                found.add_source(bare, path.parent)
            else:
                found.add_pip(bare)
            continue
        option, value = _option(line)
        if option in _IGNORED:
            continue
        if option in _EDITABLE and value:
            found.add_source(value, path.parent, editable=True)
        elif option in _FILE_OPTIONS and value:
            other = path.parent / value
            check_inside(other, folders, f"{path}: {option} {value}")
            _read(other, found, folders, depth + 1)
        elif option in _KEPT and value:
            name = _KEPT[option]
            if name in _PLACES:
                value = link_from(value, path.parent, folders[0])
            found.add_option(f"{name} {value}")
        else:
            found.left_out.append((line, _why_not(option)))


def _option(line: str) -> tuple[str, str]:
    """The name of an option and its value; the value is empty if the option cannot be read."""
    try:
        return split_option(line, "")
    except ConfigError:
        return line.split()[0], ""


def _why_not(option: str) -> str:
    """The reason why an environment file cannot have an option."""
    if option in _EDITABLE:
        return "it names no folder: write -e FOLDER"
    return "this option is not supported"
