"""What stops a solve with conda-lock before it starts; solves are in tests/integration."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from builder.core.errors import SolveError, UsageError
from builder.core.settings import Settings
from builder.core.stages import LockOptions
from builder.lock import condalock
from builder.lock.condalock import conda_lock_target
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs
from builder.lock.request import LockRequest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "environment.yml").write_text("channels: [c]\ndependencies: [python]\n")
    return tmp_path


def solve(folder: Path, update: tuple[str, ...] = (), date: str | None = None, **values) -> None:
    base = {"name": "t", "base": "debian:bookworm", "environment": "environment.yml", "root": folder}
    recipe = Recipe.model_validate({**base, **values})
    settings = Settings(folder / "cache", folder / "tmp", 1)
    options = LockOptions(update, exclude_newer=date)
    conda_lock_target(LockRequest(Inputs.read(recipe), settings, options=options))


def test_no_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CONDA_EXE", "MAMBA_EXE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SolveError, match="needs conda, mamba or micromamba") as error:
        solve(folder)
    assert "install micromamba" in error.value.hint


def test_options(folder: Path) -> None:
    with pytest.raises(UsageError, match="update single packages"):
        solve(folder, update=("python",))
    with pytest.raises(UsageError, match="exclude_newer"):
        solve(folder, date="2026-01-01")
    with pytest.raises(UsageError, match="exclude_newer"):
        solve(folder, conda={"exclude_newer": "month"})


def test_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """conda-lock writes the password of a channel on conda's command line."""
    program = folder / "conda"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    channel = folder / "linux-64"
    channel.mkdir()
    (channel / "repodata.json").write_text("{}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("NAME", folder.name)
    with pytest.raises(UsageError, match="password on the command line"):
        solve(folder, conda={"channels": [f"file://{folder.parent}/$NAME"]})


def test_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """conda trusts whom builder trusts, and asks the same proxies."""
    seen: dict[str, str] = {}

    def run(command: object, work: Path, env: dict[str, str], *rest: object) -> CompletedProcess[str]:
        seen.update(env, text=Path(env["REQUESTS_CA_BUNDLE"]).read_text())
        return CompletedProcess([], 1, "", "stopped")

    monkeypatch.setattr(condalock, "run_tool", run)
    monkeypatch.setattr(condalock, "_program", lambda: folder / "conda")
    monkeypatch.setattr(condalock, "conda_mapping", lambda settings: {})
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "*.site")
    with pytest.raises(SolveError, match="stopped"):
        solve(folder)
    assert seen["no_proxy"].startswith("site,localhost") and "BEGIN CERTIFICATE" in seen["text"]
    assert seen["SSL_CERT_FILE"] == seen["REQUESTS_CA_BUNDLE"]
