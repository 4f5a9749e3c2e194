"""The command line: help, exit codes, and what goes to stdout and what to stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from builder.cli import COMMANDS, cli
from builder.cli.groups import command as publish_py
from tests.support.cli import Cli
from tests.support.project import TinyProject

CLONE = Path(__file__).parents[3]


def commands(
    group: click.Group, ctx: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None, name
        if isinstance(found, click.Group):
            yield from commands(found, ctx, (*path, name))
        else:
            yield (*path, name), found


ALL = list(commands(cli, click.Context(cli)))


@pytest.mark.parametrize("path", [" ".join(p) for p, _ in ALL])
def test_help_and_json(path: str) -> None:
    """Every command and option has a help text, and every command but two has --json."""
    found = dict(ALL)[tuple(path.split())]
    assert found.help and found.help.split("\n\n")[0].rstrip().endswith((".", ")"))
    options = {o for p in found.params for o in p.opts}
    assert "--json" in options or path in ("help", "job"), "scripts are text"
    for p in found.params:
        assert not isinstance(p, click.Option) or p.help or p.name == "as_json", f"{p.name} explains nothing"


def options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option)]


def test_texts_of_options(tmp_path: Path) -> None:
    """Each line of options.txt is the text of an option."""
    (tmp_path / "recipes").mkdir()
    every = [cli, publish_py(tmp_path), *(command for _, command in ALL)]
    shown = {option.help for command in every for option in options(command)}
    lines = (CLONE / "builder/cli/options.txt").read_text().splitlines()
    assert {line.split(maxsplit=2)[2] for line in lines} <= shown


def test_few_commands_and_options() -> None:
    """A newcomer reads all of it: 19 commands, 20 options each, 160 in all."""
    counts = {" ".join(path): len(options(command)) for path, command in ALL}
    groups = [
        c for name in COMMANDS if isinstance(c := cli.get_command(click.Context(cli), name), click.Group)
    ]
    total = sum(counts.values()) + sum(len(options(group)) for group in [cli, *groups])
    assert len(COMMANDS) <= 19 and max(counts.values()) <= 20 and total <= 160, counts


def test_help_fits_a_terminal(do: Cli) -> None:
    """80 columns, a line a command, and each summary is whole; docs/cli.md names every command."""
    lines = do("--help").out.splitlines()
    assert len(lines) <= len(COMMANDS) + 7 and max(map(len, lines)) <= 80
    shown = lines[lines.index("Commands:") + 1 :][: len(COMMANDS)]
    assert [line.split()[0] for line in shown] == list(COMMANDS)
    assert all(line.endswith(".") for line in shown)
    assert "--log-file FILE" in do("help", "options").out
    docs = (CLONE / "docs" / "cli.md").read_text()
    assert [c for c in COMMANDS if f"`builder {c}" not in docs] == []


@pytest.mark.parametrize("command", ["build", "pull", "smoke", "run", "job", "publish"])
def test_no_target_of_several(do: Cli, three: TinyProject, command: str) -> None:
    """Only a project of one target needs no TARGET."""
    result = do(command)
    assert result.code == 2 and "no target given, and the project has several" in result.err
    assert "targets: broken, tiny, zwei" in result.err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("BUILDER_JOBS", "many", "BUILDER_JOBS='many' must be a whole number"),
        ("BUILDER_JOBS", "\N{SUPERSCRIPT TWO}", "from 1 to 1024"),
        ("BUILDER_JOBS", "1" * 5000, "from 1 to 1024"),
        ("BUILDER_TMPDIR", "~no-such-user/x", "~no-such-user/x: its home folder is not known"),
        ("SOURCE_DATE_EPOCH", "-1", "SOURCE_DATE_EPOCH='-1'"),
        ("SOURCE_DATE_EPOCH", str(2**32), "from 0 to 4294967295"),
        ("BUILDER_MIRRORS", "https://a", "BUILDER_MIRRORS: 'https://a' is not FROM=TO"),
    ],
)
def test_invalid_variables(
    do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    result = do("targets")
    assert result.code == 2 and words in result.err and "hint:" in result.err


def test_no_project(do: Cli, tiny: TinyProject) -> None:
    result = do(
        "--project", "/dev", "targets"
    )  # nothing that this test makes: the temporary folder may lie in the clone
    assert (
        result.code == 3
        and "no recipes/ folder in /dev or a parent folder" in result.err
        and "builder init" in result.err
        and "--project DIR" in result.err
    )
    (tiny.root / "deep" / "down").mkdir(parents=True)
    assert do("--project", tiny.root / "deep" / "down", "targets", "--json").json[0]["name"] == "tiny"


def test_quiet_and_json(do: Cli, copy: TinyProject) -> None:
    """A failure is one document too."""
    assert do("-q", "build", "tiny").err == ""
    assert do("build", "tiny", "--json").json["digest"].startswith("sha256:")
    failed = do("build", "nothing", "--json")
    assert failed.code == failed.json["code"] == 3 and "no target named 'nothing'" in failed.json["error"]


def test_stdout_is_full(tiny: TinyProject) -> None:
    """A command whose output cannot be written fails with one line."""
    with Path("/dev/full").open("w") as full:
        for command in (["targets"], ["targets", "--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "builder", *command],
                env={**tiny.variables(), "PYTHONPATH": str(CLONE), "PYTHONUNBUFFERED": ""},
                cwd=tiny.root,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert done.returncode == 13 and done.stderr.startswith("error: No space left on device"), (
                done.stderr
            )
            assert "Traceback" not in done.stderr
