"""Which runner is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RunnerError, UsageError
from builder.run import select
from builder.run.select import RUNNER_NAMES, find_runner, runners
from builder.store.blobs import Store
from tests.support.image_kit import settings


class Fake:
    def __init__(self, name: str, why: str | None) -> None:
        self.name, self.why = name, why

    def available(self) -> str | None:
        return self.why


def test_first_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = [
        Fake("docker", "no engine"),
        Fake("podman", None),
        Fake("apptainer", None),
        Fake("userns", None),
    ]
    monkeypatch.setattr(select, "runners", lambda *a: fakes)
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
        lambda *a: [Fake("docker", "no engine"), Fake("userns", "no user namespaces")],
    )
    with pytest.raises(RunnerError) as e:
        find_runner(settings(tmp_path), Store(tmp_path))
    assert "docker: no engine" in e.value.message and "userns: no user namespaces" in e.value.message
    assert e.value.exit_code == 10


def test_names(tmp_path: Path) -> None:
    assert tuple(r.name for r in runners(settings(tmp_path), Store(tmp_path))) == RUNNER_NAMES


def test_available_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for runner in runners(settings(tmp_path / "x"), Store(tmp_path / "x")):
        if not runner.name.startswith("podman"):  # podman makes its storage, whatever it is asked
            runner.available()
    assert not (tmp_path / "x").exists() and not (tmp_path / "home").exists()
