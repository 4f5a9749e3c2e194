"""``builder -v build``: a line for each stage and decision, which a user understands."""

from __future__ import annotations

import re

from tests.support.cli import Cli
from tests.support.project import TinyProject

#: How the lines begin, in the order of the stages: room and module, then the words.
STORY = (
    "no lock for tiny yet, locking now",
    "engines.dispatch: engine layered built tiny sha256:",
    "engines.dispatch: seconds by stage: ",
)


def told(text: str) -> list[str]:
    """The lines of the story that a command has printed, in its order."""
    lines = [next((words for words in STORY if line.startswith(words)), "") for line in text.splitlines()]
    return [words for words in lines if words]


def test_build(do: Cli, tiny: TinyProject) -> None:
    """Each stage has its line, in order. A message is no log line too, and no library has any."""
    err = do("-v", "build", "tiny").err
    assert told(err) == list(STORY)
    assert err.count("no lock for tiny yet") == 1
    assert not re.search("^. (builder|httpx)", err, re.M) and "HTTP Request" not in err


def test_everything(do: Cli, tiny: TinyProject) -> None:
    """``-vv`` names the level, and has the requests of libraries."""
    err = do("-vv", "lock", "tiny").err
    assert "\nD builder: command: " in err
    assert "\nI httpx: HTTP Request: " in err
    assert "builder.output" not in err


def test_quiet(do: Cli, tiny: TinyProject) -> None:
    assert told(do("build", "tiny").err) == ["no lock for tiny yet, locking now"]
