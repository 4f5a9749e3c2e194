"""Several targets in one command: a failure of one does not stop the others."""

from __future__ import annotations

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject


@pytest.mark.parametrize("command", ["lock", "build"])
def test_failure_of_one_target(do: Cli, three: TinyProject, command: str) -> None:
    """The other targets are locked or built, and the exit code is that of the failure."""
    names = [] if command == "lock" else ["broken", "tiny", "zwei"]
    result = do(command, *names, "--json")
    assert result.code == 5 and "1 of 3 targets failed: broken" in result.err
    assert "error: broken: " in result.err and "greeter >=2" in result.err
    by_name = {r["target"]: r for r in result.json}
    assert "greeter >=2" in by_name["broken"]["error"]
    assert by_name["tiny"]["digest"] and by_name["zwei"]["digest"]
    assert (three.lock.parent / "tiny.zwei.lock.yml").exists()
    alone = do(command, "broken")
    assert alone.code == 5 and "targets failed" not in alone.err


def test_only_target(do: Cli, copy: TinyProject) -> None:
    """In a project of one target every command works without its name."""
    assert do("build", "--json").json["target"] == "tiny"
    assert do("targets", "tiny").out.startswith(f"# {copy.recipe}")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "python", "train.py"], ["python", "train.py"]),
        (["python", "train.py"], ["python", "train.py"]),
        (["tiny", "--", "python", "-c", "1"], ["python", "-c", "1"]),
        (["tiny"], []),
        ([], []),
        (["--", "tiny", "world"], ["tiny", "world"]),
        (["--", "tiny"], ["tiny"]),
        (["tiny", "--", "tiny", "world"], ["tiny", "world"]),
        (["python", "--", "tiny", "--epochs", "3"], ["python", "tiny", "--epochs", "3"]),
        (["tiny", "--", "bash", "-c", "x", "--", "tiny"], ["bash", "-c", "x", "--", "tiny"]),
        (["--", "h.example/me/tiny:1", "x"], ["h.example/me/tiny:1", "x"]),
    ],
)
def test_command_of_the_only_target(copy: TinyProject, words: list[str], command: list[str], do: Cli) -> None:
    """The first word is a target if one has this name; otherwise all words are the command.

    What follows ``--`` is never a target, and no image either.
    """
    shown = do("run", "--print", "--json", *words).json
    assert shown["target"] == "tiny"
    assert shown["command"] == ["builder", "run", "tiny", *(["--", *command] if command else [])]


def test_first_word_of_several_targets(do: Cli, three: TinyProject) -> None:
    """In a project of several targets the first word must be one of them."""
    result = do("run", "python", "train.py")
    assert result.code == 3 and "no target named 'python'" in result.err
    assert "; the target stands before the command" in result.err
    assert do("run", "zwei", "--print", "--json", "--", "ls").json["target"] == "zwei"
    result = do("run", "--", "zwei", "ls")
    assert result.code == 2 and "no target given, and the project has several" in result.err
