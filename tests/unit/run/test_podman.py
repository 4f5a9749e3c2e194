"""podman's command line."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from builder.errors import RunnerError
from builder.run.podman import PodmanRunner, variable_options
from builder.store.blobs import Store
from tests.support.image_kit import settings


def test_variable_options(tmp_path: Path) -> None:
    """Variables are in a private file, and those of several lines in podman's environment."""
    with variable_options({"TOKEN": "s3cret, $x 'y'", "KEY": "-----BEGIN\nline", "EMPTY": ""}, tmp_path) as (
        options,
        environ,
    ):
        file = Path(options[1])
        assert options == ["--env-file", str(file), "--env", "KEY"]
        assert file.read_text() == "TOKEN=s3cret, $x 'y'\nEMPTY=\n"
        assert (
            stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        )
        assert (
            environ is not None
            and environ["KEY"] == "-----BEGIN\nline"
            and environ["PATH"] == os.environ["PATH"]
        )
    assert not list(tmp_path.iterdir())
    with variable_options({}, tmp_path) as (options, environ):
        assert options == [] and environ is None
    with pytest.raises(RunnerError, match="'A B'"), variable_options({"A B": "1"}, tmp_path):
        pass


def test_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = PodmanRunner(settings(tmp_path), Store(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert podman.available() == "not installed"
    (tmp_path / "podman").write_text("#!/bin/sh\necho 'Error: no cgroups' >&2\nexit 125\n")
    (tmp_path / "podman").chmod(0o755)
    assert podman.available() == "does not work: Error: no cgroups"
