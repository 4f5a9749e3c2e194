"""The output of a step, and its command line."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from builder.errors import ImageError
from builder.progress import QUIET
from builder.run.process import Completed
from builder.run.task import TaskLog
from builder.settings import Settings
from builder.steps.job import StepRun, check_step


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "cache", tmp_path / "tmp", 1)


def test_failure(settings: Settings) -> None:
    """The message has place, command, exit code and the last 30 lines; the file has all, for this user."""
    step = StepRun(("make", "make test"), title="tests", where="recipes/a.yaml:9: steps[0]")
    with TaskLog(settings, "step tests", QUIET, "step") as output:
        for line in ("+ make", "ok", "+ make test", *(f"line {n}" for n in range(40))):
            output.add(line)
    check_step(Completed(0, "", ""), step, output)
    with pytest.raises(ImageError) as caught:
        check_step(Completed(2, "", ""), step, output)
    assert caught.value.message.startswith(
        "recipes/a.yaml:9: steps[0]: the step 'tests' failed with exit code 2 at 'make test':\n    line 10\n"
    )
    assert caught.value.message.endswith("line 39")
    assert caught.value.hint == f"all lines of the step: {output.path}"
    assert len(output.path.read_text().splitlines()) == 43
    assert stat.S_IMODE(output.path.stat().st_mode) == 0o600


def test_credentials() -> None:
    """They are in no title."""
    step = StepRun(("git clone https://me:secret@host.example/x",))
    assert step.name == "git clone https://host.example/x"
