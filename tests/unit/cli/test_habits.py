"""Options and commands of Docker, Apptainer, conda and Slurm: what builder has instead (habits.txt)."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import click
import pytest

from builder.cli import COMMANDS, cli, run
from tests.support.cli import Cli
from tests.support.doccommands import ROOT, Block, parse, program
from tests.support.project import TinyProject

ROWS = [line.split(maxsplit=2) for line in (ROOT / "builder/cli/habits.txt").read_text().splitlines()]


def command_of(name: str) -> click.Command:
    found = cli if name == "cli" else cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize(("commands", "words", "text"), ROWS, ids=lambda value: value[:20])
def test_row(commands: str, words: str, text: str) -> None:
    """The words are none of builder's, and builder accepts each line of the text."""
    names = [name for name in COMMANDS if name != "run"] if commands == "*" else commands.split(",")
    for command in map(command_of, names):
        known = {option for parameter in command.params for option in parameter.opts}
        known |= (
            set(command.list_commands(click.Context(command))) if isinstance(command, click.Group) else set()
        )
        assert not known & set(words.split(",")), command.name
    for name in commands.split(","):
        lines = re.findall("`([^`]+)`", text.replace("{}", f"builder {name}"))
        assert lines or text.startswith(("leave it out", "no container"))
        for line in lines:
            for typed in Block(Path(), 1, line.removeprefix("nohup "), "", "").commands():
                if program(typed) == "builder":
                    with suppress(click.exceptions.Exit):  # --version
                        parse(typed[1:])


def test_page() -> None:
    """docs/howto/from-dockerfile.md has the rows up to those of Slurm, each with its first word."""
    expected = []
    for commands, words, text in takewhile(lambda row: row[0] != "job", ROWS):
        name = f"{commands.split(',')[0]} {words.split(',')[0]}".removeprefix("cli ")
        expected.append(f"| `{name}` | {text.replace('{}', 'builder run')} |")
    page = (ROOT / "docs/howto/from-dockerfile.md").read_text()
    section = page.partition("## Commands and options")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == expected


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "run -v /data:/data -- ls",
            "No such option '-v'",
            "builder run --bind $PWD/data:/data -- ls /data",
        ),
        ("job --volume=/data:/data -- ls", "No such option '--volume'", "builder job --bind"),
        ("run --gpus all -- ls", "Invalid value for '--gpus'", "leave it out, or builder run --gpus 1"),
        ("build --no-cache", "No such option '--no-cache'", "leave it out; newer packages: builder lock,"),
        ("build --build-arg A=1", "No such option '--build-arg'", "env: {NAME: VALUE} in the recipe"),
        ("shell tiny", "No such command 'shell'", "builder run -i -- bash"),
        ("install ls", "No such command 'install'", "change environment.yml"),
        ("help ps", "No such command 'ps'", "no container stays"),
        ("cache clean", "No such command 'clean'", "builder cache prune"),
        ("build --project x", "No such option '--project'", "it precedes the command: builder --project DIR"),
    ],
)
def test_typed(do: Cli, tiny: TinyProject, words: str, message: str, hint: str) -> None:
    """The hint replaces a guess by letters (--build-arg: did you mean --rebuild?)."""
    result = do(*words.split())
    assert result.code == 2 and result.err.startswith(f"error: {message}")
    assert f"\n  hint: {hint}" in result.err and "Did you mean" not in result.err


def test_all_of_a_line(do: Cli, tiny: TinyProject) -> None:
    """A whole docker run needs one look: each of its options has its line."""
    assert do(*["run", "--rm", "-it", "-e", "A=1", "tiny", "ls"]).err == (
        "error: No such option '--rm'\n"
        "  hint: --rm: leave it out: no container stays\n"
        "        -it: builder run -i -- bash\n"
        "        -e: builder run --env NAME=VALUE -- python train.py\n"
    )


@pytest.mark.parametrize(
    ("typed", "option", "line"),
    [
        ("run python train.py --lr 1", "--lr", "builder run -- python train.py --lr 1"),
        ("run tiny python -u train.py", "-u", "builder run tiny -- python -u train.py"),
        ("run --gpus 1 tiny --no-bind ls -v", "-v", "builder run --gpus 1 tiny --no-bind -- ls -v"),
        ("run ghcr.io/me/mine:v1 ls -d", "-d", "builder run ghcr.io/me/mine:v1 -- ls -d"),
        ("job --nodes 2 train --name 'a b'", "--name", "builder job --nodes 2 -- train --name 'a b'"),
    ],
)
def test_option_of_the_command(do: Cli, tiny: TinyProject, typed: str, option: str, line: str) -> None:
    """-v of ls is not that of docker run: the command comes after --."""
    result = do(*shlex.split(typed))
    assert result.code == 2 and result.err == (
        f"error: {option} is an option of the command, which stands after --\n  hint: write: {line}\n"
    )


@pytest.mark.parametrize(
    ("words", "continues"),
    [("build x", True), ("-q lock", True), ("run -- python build", False), ("init", False), ("--ml", True)],
)
def test_ctrl_c(capsys: pytest.CaptureFixture[str], words: str, continues: bool) -> None:
    """A training and the questions of init have nothing in the cache to continue from; publish.py has."""

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def interrupted(rest: tuple[str, ...]) -> None:
        raise KeyboardInterrupt

    assert run(interrupted, words.split()) == 130
    then = "; finished work is in the cache: run the command again to continue" if continues else ""
    assert capsys.readouterr().err.strip() == f"error: interrupted{then}"


def test_load_without_podman(
    do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """builder build has no --runner; doctor says no more than that podman is missing, and run needs none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = do("build", "tiny", "--load", "podman")
    assert result.code == 10
    hint = "see builder doctor; or leave out --load: builder run needs no podman"
    assert f"error: --load podman: not installed\n  hint: {hint}\n" in result.err
