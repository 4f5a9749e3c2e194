"""Every command of the documentation is run or says why not; every ``builder`` line exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.support.doccommands import (
    FOLDER,
    PAGES,
    ROOT,
    Block,
    blocks,
    marked,
    parse,
    program,
    simple_commands,
)

BLOCKS = [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_block(block: Block) -> None:
    """A block has a mark, its commands and options exist, and what it names as its test has its lines."""
    assert block.kind, f"{block.where}: write <!-- run: cpu --> or <!-- not run: REASON --> above the block"
    for words in block.commands():
        if program(words) == "builder":
            assert not refused(words[1:]), f"{block.where}: {words}"
    if block.kind == "run" and block.what != "cpu" and not block.what.startswith(FOLDER):
        script = list(Block(ROOT / block.what, 1, (ROOT / block.what).read_text(), "", "").commands())
        missing = [words for words in block.commands() if words not in script]
        assert not missing, f"{block.what} does not run {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_in_text(page: Path) -> None:
    """A line of builder in a sentence or a table exists; it may leave out arguments."""
    for text in re.findall(r"`(builder [^`]+)`", page.read_text()):
        for words in simple_commands(re.sub(r"\s+", " ", text).replace("\\|", "|")):
            if program(words) == "builder" and (problem := refused(words[1:])):
                assert re.match("Missing argument|Option '.*' requires an argument", problem), (text, problem)


def refused(words: list[str]) -> str:
    """Return click's message if the commands do not accept these words."""
    try:
        parse(words)
    except click.exceptions.Exit:
        pass  # --help, --version
    except click.ClickException as e:
        return e.format_message()
    return ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pull cpu --to oci:DIR", "No such option"),
        ("biuld cpu", "No such command"),
        ("lock cpu --exclude-newer", "requires an argument"),
        ("cache", "Usage: builder cache"),
        ("smoke cpu --runner lxc", "is not one of"),
    ],
)
def test_wrong_lines_are_found(line: str, message: str) -> None:
    with pytest.raises(click.ClickException) as caught:
        parse(line.split())
    assert message in caught.value.format_message()


def test_files_of_blocks(tmp_path: Path) -> None:
    """A file for commands is no block of commands, also if it looks like one."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a/setup.sh -->\n\n```bash\nmake all\n```\n\n"
        "<!-- append: a/setup.sh -->\n\n    x: 1\n\n<!-- run: folder a -->\n\n    builder build\n"
    )
    found = [(block.kind, block.what, block.text) for block in marked(page)]
    assert found == [
        ("file", "a/setup.sh", "make all"),
        ("append", "a/setup.sh", "x: 1"),
        ("run", "folder a", "builder build"),
    ]
    assert [block.kind for block in blocks(page)] == ["run"]


def test_reading_of_blocks(tmp_path: Path) -> None:
    """Indented and fenced blocks, comments, quotes, operators, marks of a block and of a page."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n<!-- commands: not run: no GPU here -->\n\n"
        "    builder lock a && builder build a  # it's slow\n\n"
        "- an item\n\n    builder is the word of an item\n\n"
        "<!-- run: cpu -->\n\n"
        "```\nX=1 .venv/bin/builder run a -- \\\n    python -c 'print(\" # \")' > out\n```\n\n"
        "```yaml\nrun: builder\n```\n\n    some output\n"
    )
    first, second = blocks(page)
    assert (first.kind, first.what, first.line) == ("not run", "no GPU here", 5)
    assert list(first.commands()) == [["builder", "lock", "a"], ["builder", "build", "a"]]
    assert (second.kind, second.what) == ("run", "cpu")
    assert list(second.commands()) == [
        [".venv/bin/builder", "run", "a", "--", "python", "-c", 'print(" # ")']
    ]
