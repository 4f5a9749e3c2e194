"""Which runner is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.config.recipe import GpuVendor
from builder.errors import RunnerError, UsageError
from builder.progress import NullReporter
from builder.run import select, trial
from builder.run.failures import Problem
from builder.run.podman import PodmanRunner
from builder.run.select import RUNNER_NAMES, find_runner, runners
from builder.store.blobs import Store
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


def test_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: list[Problem | None]) -> None:
    """An engine that answers and cannot start a container is left out, with the reason and what to do."""
    warnings: list[str] = []
    monkeypatch.setattr(NullReporter, "warn", lambda self, message: warnings.append(message))
    args = settings(tmp_path), Store(tmp_path)
    fakes = [Docker(*args), Engine(*args), Fake("userns", None)]
    monkeypatch.setattr(select, "runners", lambda *a, **more: fakes)
    trials += [Problem("docker is broken"), Problem("podman is broken", "type this")]
    assert find_runner(*args).name == "userns"
    assert warnings == [
        "docker is broken; trying the next runner",
        "podman is broken; trying the next runner\n  hint: type this",
    ]
    trials.append(Problem("docker is broken"))
    assert find_runner(*args, "docker").name == "docker", "the named one is not tried"


def test_first_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [
        Fake("docker", "no engine"),
        Fake("podman", None),
        Fake("apptainer", None),
        Fake("userns", None),
    ]
    monkeypatch.setattr(select, "runners", lambda *a, **more: fakes)
    args = settings(tmp_path), Store(tmp_path)
    assert find_runner(*args).name == "podman"
    assert find_runner(*args, "userns").name == "userns"
    assert find_runner(*args, without=["podman"]).name == "apptainer"
    with pytest.raises(RunnerError, match="docker: no engine"):
        find_runner(*args, "docker")
    with pytest.raises(UsageError, match="'dokcer'"):
        find_runner(*args, "dokcer")


def test_no_runner_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the reason of each runner."""
    monkeypatch.setattr(
        select,
        "runners",
        lambda *a, **more: [Fake("docker", "no engine"), Fake("userns", "no user namespaces")],
    )
    with pytest.raises(RunnerError) as e:
        find_runner(settings(tmp_path), Store(tmp_path))
    assert "docker: no engine" in e.value.message and "userns: no user namespaces" in e.value.message
    assert e.value.exit_code == 10


def test_names(tmp_path: Path) -> None:
    assert tuple(r.name for r in runners(settings(tmp_path), Store(tmp_path))) == RUNNER_NAMES


@pytest.mark.parametrize(
    ("gpu", "files", "first", "last"),
    [
        ("none", (), "userns", "apptainer"),
        ("nvidia", ("nvidia0", "nvidiactl", "nvidia-uvm"), "podman-hpc", "apptainer"),
        ("nvidia", ("nvidia0", "nvidiactl"), "podman-hpc", "apptainer"),
        ("amd", ("kfd", "dri"), "podman-hpc", "apptainer"),
        ("amd", (), "podman-hpc", "apptainer"),
    ],
)
def test_order(
    gpu: GpuVendor,
    files: tuple[str, ...],
    first: str,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """User namespaces come first, unless device files of GPUs are missing: an engine can make those."""
    monkeypatch.setattr("builder.run.gpu.gpu_devices", lambda vendor: [Path("/dev", name) for name in files])
    names = [runner.name for runner in runners(settings(tmp_path), Store(tmp_path), gpu=gpu)]
    assert (names[0], names[-1]) == (first, last)
    missing = gpu != "none" and len(files) < (3 if gpu == "nvidia" else 1)
    assert (names.index("userns") > names.index("docker")) == missing
    assert sorted(names) == sorted(RUNNER_NAMES)


def test_available_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for runner in runners(settings(tmp_path / "x"), Store(tmp_path / "x")):
        if not runner.name.startswith("podman"):  # podman makes its storage, whatever it is asked
            runner.available()
    assert not (tmp_path / "x").exists() and not (tmp_path / "home").exists()
