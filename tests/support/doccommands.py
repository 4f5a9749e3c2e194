"""The commands of the documentation: blocks, their marks, and command lines.

A block of commands has a mark, an HTML comment directly above it, which no reader sees:

    <!-- run: cpu -->                      executed in a copy of this repository's project with target cpu
    <!-- run: folder NAME -->              executed in a folder of its own, which is empty at first
    <!-- run: FILE -->                     executed by that script, which has these very lines
    <!-- not run: REASON -->               only parsed

A page may set the mark for all blocks that have none of their own: ``<!-- commands: not run: REASON -->``.
Blocks of one page with the same mark are executed in one folder, in their order. A block that shows a file
is written there, or added to the end of that file:

    <!-- file: NAME/FILE -->
    <!-- append: NAME/FILE -->

In a folder, :data:`REGISTRY` is a registry on this machine. On the pages of ``docs/extending``, blocks are
changes of builder:

    <!-- new: FILE -->
    <!-- edit: FILE -->                    lines with -, which are replaced by those with +, and context
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/synapse/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: Programs that make a block one of commands.
_PROGRAM = re.compile(
    "builder|make|python3?|pip|uv|docker|podman(-hpc)?|apptainer|singularity|module|export|source|git|mkdir|cp"
    "|sudo|salloc|sbatch|wsl|limactl"
)
_SHELLS = {"", "sh", "bash", "console", "shell"}
_MARK = re.compile(
    r"<!-- (?:(?P<page>commands): )?(?P<kind>run|not run|file|append|new|edit): (?P<what>.+?) -->"
)
#: Kinds of blocks that are files, not commands.
FILES = ("file", "append")
#: Kinds of blocks that change builder itself: a new file of the clone, and a difference (+, - and context).
CHANGES = ("new", "edit")
#: The pages' name of a registry.
REGISTRY = "registry.example.org"
#: What begins the name of the folder in which a block is executed.
FOLDER = "folder "
_OPERATORS = {"&&", "||", ";", "|", "&", "(", ")"}


@dataclass(frozen=True)
class Block:
    """A block of a page that contains command lines, or a file for them."""

    page: Path
    line: int
    text: str
    kind: str
    """``run``, ``not run``, one of :data:`FILES`, or empty: it has no mark."""
    what: str
    """What it runs in, the reason why it is not run, or the path of the file."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each simple command, without comments, redirections and assignments."""
        text = re.sub(r"\\\n\s*", " ", self.text)
        text = re.sub(r"<<'?(\w+)'?.*?^\s*\1$", "", text, flags=re.DOTALL | re.MULTILINE)  # here documents
        for line in text.splitlines():
            yield from simple_commands(line.strip().removeprefix("$ "))


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each simple command of a line."""
    line = re.sub(r"\[options\]|(?<=[A-Z])\.\.\.", "", line)
    line = re.sub(r"\[(-[^]]*)\]", r"\1", line)  # [--option VALUE]: may be left out
    words: list[str] = []
    for token in [*_tokens(line), ";"]:
        if token in _OPERATORS:
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(token)


def _tokens(line: str) -> list[str]:
    """The words and operators before a comment; nothing if the line is no command line (an open quote)."""
    for end in [*(match.start() for match in re.finditer(r"(?:^|(?<=\s))#", line)), len(line)]:
        lexer = shlex.shlex(line[:end], posix=True, punctuation_chars="();&|<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            tokens = list(lexer)
        except ValueError:
            continue  # this # is in quotes
        redirected = [i for i, token in enumerate(tokens) if token in (">", ">>", "<")]
        return tokens[: redirected[0]] if redirected else tokens
    return []


def program(words: list[str]) -> str:
    """The name of a command's program: ``.venv/bin/builder`` is ``builder``."""
    return words[0].rpartition("/")[2]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that contain a command line."""
    return [block for block in marked(page) if block.kind not in (*FILES, *CHANGES)]


def marked(page: Path) -> list[Block]:
    """The blocks of a page that contain a command line, and those that are files for them."""
    found = []
    default = ("", "")
    for line, language, text, above in code_blocks(page.read_text().splitlines()):
        for comment in above:
            if (match := _MARK.fullmatch(comment.strip())) and match["page"]:
                default = (match["kind"], match["what"])
        own = _MARK.fullmatch(above[-1].strip()) if above else None
        kind, what = (own["kind"], own["what"]) if own and not own["page"] else default
        block = Block(page, line, text, kind, what)
        is_script = language in _SHELLS and any(
            _PROGRAM.fullmatch(program(words)) for words in block.commands()
        )
        if kind in (*FILES, *CHANGES) or is_script:
            found.append(block)
    return found


def code_blocks(lines: list[str]) -> Iterator[tuple[int, str, str, list[str]]]:
    """Line, language and text of each code block, and the lines of text above it."""
    above: list[str] = []
    position = 0
    while position < len(lines):
        start, line = position, lines[position]
        if fence := re.match(r"\s*(```+|~~~+)\s*(\w*)", line):
            position += 1
            while position < len(lines) and not lines[position].strip().startswith(fence[1]):
                position += 1
            yield start + 1, fence[2], _dedent(lines[start + 1 : position]), above
            position, above = position + 1, []
        elif line.startswith("    ") and not lines[start - 1].strip() and not _in_list(above):
            while position < len(lines) and (
                lines[position].startswith("    ") or not lines[position].strip()
            ):
                position += 1
            yield start + 1, "", _dedent(lines[start:position]), above
            above = []
        else:
            above += [line] if line.strip() else []
            position += 1


def apply(page: Path, clone: Path) -> None:
    """Makes the changes of a page in a copy of the repository."""
    for block in marked(page):
        path = clone / block.what
        if block.kind == "new":
            path.write_text(f"{block.text}\n")
        elif block.kind == "edit":
            lines = block.text.splitlines()
            before, after = (
                "".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign)) for sign in "+-"
            )
            text = path.read_text()
            assert text.count(before) == 1, f"{block.where}: {block.what} does not have these lines once"
            path.write_text(text.replace(before, after))


def _in_list(above: list[str]) -> bool:
    """Whether an indented line continues an item of a list."""
    return bool(above) and bool(re.match(r"\s*(?:[-*]|\d+\.) |  \S", above[-1]))


def _dedent(lines: list[str]) -> str:
    width = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[width:] for line in lines).strip("\n")


def parse(words: list[str]) -> None:
    """Parses the words after ``builder`` with the real commands; calls none of them.

    Raises:
        click.ClickException: a command or option does not exist, or an argument is missing.
    """
    from builder.cli import cli

    context: click.Context = cli.make_context("builder", list(words))
    command: click.Command = cli
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return  # builder --help, and groups that do something without a command
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        command, context = found, found.make_context(name, rest, parent=context)


def shims(folder: Path) -> str:
    """Makes a folder with the commands ``builder``, ``uv`` and ``python`` of this clone; returns a PATH."""
    folder.mkdir()
    (folder / "builder").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m builder "$@"\n')
    (folder / "uv").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m uv "$@"\n')
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
