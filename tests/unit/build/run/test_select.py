"""Which runner is chosen."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from builder.build.run import select, trial
from builder.build.run.failures import Problem
from builder.build.run.podman import PodmanRunner
from builder.build.run.select import find_runner, runners
from builder.core.errors import RunnerError, UsageError
from builder.core.progress import Reporter
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.config.site import GpuVendor
from tests.support.image_kit import settings


class Fake:
    def __init__(self, name: str, why: str | None) -> None:
        self.name, self.why = name, why

    def available(self) -> str | None:
        return self.why


class Engine(PodmanRunner):
    """Answers."""

    def available(self) -> str | None:
        return None


class Docker(Engine):
    name = "docker"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Problem | None]:
    """Results of the next trials; all others work."""
    problems: list[Problem | None] = []
    monkeypatch.setattr(trial, "try_runner", lambda kind: problems.pop(0) if problems else None)
    return problems


def test_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the chosen runner, and the reasons why not those before it."""
    caplog.set_level(logging.INFO, "builder")
    fakes = [Fake("docker", "not installed"), Fake("userns", None)]
    monkeypatch.setattr(select, "runners", lambda *a, **more: fakes)
    find_runner(Workspace(settings(tmp_path), Store(tmp_path)))
    assert caplog.messages == ["runner docker does not work: not installed", "runner userns works"]


def test_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: list[Problem | None]) -> None:
    """An engine that answers and cannot start a container is left out, with the reason and what to do."""
    warnings: list[str] = []
    monkeypatch.setattr(Reporter, "warn", lambda self, message: warnings.append(message))
    work = Workspace(settings(tmp_path), Store(tmp_path))
    fakes = [Docker(work), Engine(work), Fake("userns", None)]
    monkeypatch.setattr(select, "runners", lambda *a, **more: fakes)
    trials += [Problem("docker is broken"), Problem("podman is broken", "type this")]
    assert find_runner(work).name == "userns"
    assert warnings == [
        "docker is broken; trying the next runner",
        "podman is broken; trying the next runner\n  hint: type this",
    ]
    trials.append(Problem("docker is broken"))
    assert find_runner(work, "docker").name == "docker", "the named one is not tried"


def test_first_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [
        Fake("docker", "no engine"),
        Fake("podman", None),
        Fake("apptainer", None),
        Fake("userns", None),
    ]
    monkeypatch.setattr(select, "runners", lambda *a, **more: fakes)
    work = Workspace(settings(tmp_path), Store(tmp_path))
    assert find_runner(work).name == "podman"
    assert find_runner(work, "userns").name == "userns"
    assert find_runner(work, without=["podman"]).name == "apptainer"
    with pytest.raises(RunnerError, match="docker: no engine"):
        find_runner(work, "docker")
    with pytest.raises(UsageError, match="'dokcer'"):
        find_runner(work, "dokcer")


@pytest.mark.parametrize(
    ("gpu", "files", "expected"),
    [
        ("none", (), ["userns", "podman-hpc", "docker", "podman", "apptainer"]),
        ("nvidia", ("nvidia0", "nvidiactl"), ["podman-hpc", "docker", "podman", "userns", "apptainer"]),
        ("amd", ("kfd", "dri"), ["podman-hpc", "userns", "docker", "podman", "apptainer"]),
    ],
)
def test_order(
    gpu: GpuVendor,
    files: tuple[str, ...],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """User namespaces come first, unless device files of GPUs are missing: an engine can make those."""
    monkeypatch.setattr(
        "builder.build.run.gpu.gpu_devices", lambda vendor: [Path("/dev", name) for name in files]
    )
    found = runners(Workspace(settings(tmp_path), Store(tmp_path)), gpu=gpu)
    assert [runner.name for runner in found] == expected
