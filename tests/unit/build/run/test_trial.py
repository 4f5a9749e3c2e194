"""The trial of a runner with a tiny container."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from builder.build.run.base import DEFAULT_OPTIONS, Runner, RunOptions
from builder.build.run.process import Completed
from builder.build.run.trial import trial_program, try_runner
from builder.core.errors import RunnerError
from builder.core.model import Image, SifImage


class Fake(Runner):
    """Answers, and has a result for each run."""

    name = "podman"
    reason: ClassVar[str | None] = None
    result: ClassVar[Completed | RunnerError] = Completed(42, "", "")

    def available(self) -> str | None:
        return self.reason

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        assert isinstance(image, Image) and image.layers[0].path is not None
        if isinstance(self.result, RunnerError):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "reason", "hint"),
    [
        (RunnerError("podman could not run: rlimit", "write a file"), "could not run: rlimit", "write a"),
        (Completed(124, "", "", timed_out=True), "within 10 s", "may hang"),
        (Completed(0, "", ""), "exit code 0", ""),
    ],
)
def test_problems(
    result: Completed | RunnerError, reason: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner works only if it has run the program; nothing is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert try_runner(Fake) is None
    monkeypatch.setattr(Fake, "result", result)
    found = try_runner(Fake)
    assert found is not None and found.is_installed and reason in found.reason and hint in found.hint
    monkeypatch.setattr(Fake, "reason", "not installed")
    missing = try_runner(Fake)
    assert missing is not None and not missing.is_installed
    assert list(tmp_path.iterdir()) == []


def test_program(tmp_path: Path) -> None:
    """The program for this processor runs, and has its exit code."""
    program = tmp_path / "trial"
    program.write_bytes(trial_program(platform.machine()))
    program.chmod(0o755)
    assert subprocess.run([program], check=False).returncode == 42
    assert len(trial_program("x86_64")) == len(trial_program("aarch64")) == 132
