"""``builder -v build``: a line for each stage and decision, which a user understands."""

from __future__ import annotations

import re

from tests.support.cli import Cli
from tests.support.project import TinyProject

#: How the lines begin, in the order of the stages: house, room and module, then the words.
STORY = (
    "lock.config.recipe: recipe ",
    "no lock for tiny yet, locking now",
    "deliver.locking: tiny: solving with rattler",
    "lock.channels: channels http://127.0.0.1:",
    "lock.pip: pip packages are from file:///",
    "deliver.locking: tiny: base oci:base is pinned to sha256:",
    "lock.file: ",
    "build.engines.prepare: base oci:base sha256:",
    "build.fetch.packages: packages: 0 are here, 1 are downloaded",
    "build.fetch.packages: packages: 2 are here, 8 are downloaded",
    "formats.layers.build: making layers: 5 are needed, 0 of them in the cache",
    "formats.layers.build: not in the cache: conda bulky 1.0; made sha256:",
    "build.bytecode.layers: no modules are compiled: bytecode: none",
    "build.image.config: image sha256:",
    "build.engines.dispatch: engine layered built tiny sha256:",
    "build.engines.dispatch: seconds by stage: ",
    "formats.oci.layout: ",
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
    assert not re.search("^. (builder|httpx2)", err, re.M) and "HTTP Request" not in err


def test_everything(do: Cli, tiny: TinyProject) -> None:
    """``-vv`` names the level, and has the requests of libraries."""
    err = do("-vv", "build", "tiny").err
    assert "\nD builder: command: " in err
    assert "\nI httpx2: HTTP Request: " in err
    assert "builder.output" not in err


def test_quiet(do: Cli, tiny: TinyProject) -> None:
    assert told(do("build", "tiny").err) == ["no lock for tiny yet, locking now"]
