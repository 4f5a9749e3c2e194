"""``make bundle``: builder's wheels in a folder, installed where no package index can be reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import CLONE

pytestmark = [pytest.mark.network, pytest.mark.heavy]


def test_install_without_an_index(tmp_path: Path) -> None:
    """The wheels are complete: pip installs builder from the folder alone, and the command starts."""
    bundle, venv = tmp_path / "bundle", tmp_path / "venv"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    env = {**os.environ, "BUNDLE_PYTHON": sys.executable}
    made = subprocess.run(
        [CLONE / "scripts/bundle", bundle, version], env=env, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert f"wheels for Python {version} on Linux x86_64: {bundle}" in made.stdout

    offline = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    install = ["install", "-q", "--no-index", "--find-links", str(bundle)]
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [venv / "bin/pip", *install, "--require-hashes", "--requirement", str(bundle / "requirements.txt")],
        [venv / "bin/pip", *install, "builder-images"],
        [venv / "bin/builder", "--version"],
        [venv / "bin/builder", "doctor", "--help"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
