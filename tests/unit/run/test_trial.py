"""The trial of a runner with a tiny container."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.errors import RunnerError
from builder.model import Image, SifImage
from builder.run.base import DEFAULT_OPTIONS, Runner, RunOptions
from builder.run.process import Completed
from builder.run.trial import trial_program, try_runner


class Broken(Runner):
    """Answers, and cannot run anything."""

    name = "podman"

    def available(self) -> str | None:
        return None

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        raise RunnerError("podman could not run the image: rlimit", "write a file")


class Missing(Broken):
    def available(self) -> str | None:
        return "not installed"


class Working(Broken):
    """Runs the program of the image on the host."""

    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        assert isinstance(image, Image) and image.layers[0].path is not None
        return Completed(42, "", "")


class Late(Broken):
    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        return Completed(124, "", "", timed_out=True)


class Odd(Broken):
    def run(
        self, image: Image | SifImage, command: Sequence[str], options: RunOptions = DEFAULT_OPTIONS
    ) -> Completed:
        return Completed(0, "", "")


def test_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner works only if it has run the program; nothing is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert try_runner(Working) is None
    broken = try_runner(Broken)
    assert broken is not None and broken.is_installed
    assert (broken.reason, broken.hint) == ("podman could not run the image: rlimit", "write a file")
    missing = try_runner(Missing)
    assert missing is not None and not missing.is_installed
    late, odd = try_runner(Late), try_runner(Odd)
    assert late is not None and "within 10 s" in late.reason
    assert odd is not None and "exit code 0" in odd.reason
    assert list(tmp_path.iterdir()) == []


def test_program(tmp_path: Path) -> None:
    """The program for this processor runs, and has its exit code."""
    program = tmp_path / "trial"
    program.write_bytes(trial_program(platform.machine()))
    program.chmod(0o755)
    assert subprocess.run([program], check=False).returncode == 42
    assert len(trial_program("x86_64")) == len(trial_program("aarch64")) == 132
