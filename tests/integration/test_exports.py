"""The commands that builder names for locks of poetry, pdm and pipenv: the tools run them, builder reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from builder.formats.net.pipconfig import PYPI, pip_configuration
from builder.lock.othertools import export_command
from tests.unit.lock.formats.support import read

pytestmark = [pytest.mark.network, pytest.mark.heavy]
INDEX = pip_configuration().index_url or PYPI
SIX = "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"
PYPROJECT = f"""\
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["six==1.17.0"]
[dependency-groups]
dev = ["iniconfig==2.1.0"]
[[tool.poetry.source]]
name = "index"
url = "{INDEX}"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
"""
PIPFILE = f"""\
[[source]]
url = "{INDEX}"
verify_ssl = true
name = "index"
[packages]
six = "==1.17.0"
[dev-packages]
iniconfig = "==2.1.0"
"""
#: By lock: the tool with what the command adds to it, each in the version of the test; and the exported file.
TOOLS = {
    "poetry.lock": (["poetry==2.5.1", "poetry-plugin-export==1.10.1"], "requirements.txt"),
    "pdm.lock": (["pdm==2.29.4", "hishel==1.4.0"], "pylock.toml"),
    "Pipfile.lock": (["pipenv==2026.10.3"], "requirements.txt"),
}


@pytest.mark.parametrize("lock", TOOLS)
def test_export(tmp_path: Path, lock: str) -> None:
    """The command without "self add" exports the wheel with its hash, and leaves the group dev out."""
    packages, exported = TOOLS[lock]
    *added, command = export_command(Path(lock)).split(" && ")
    assert all(f"self add {packages[1].split('==')[0]}" in one.replace("'", "") for one in added)
    environment = tmp_path / "tool"
    subprocess.run([uv.find_uv_bin(), "venv", "--python", sys.executable, environment], check=True)
    install = [uv.find_uv_bin(), "pip", "install", "--no-config", "--default-index", INDEX]
    subprocess.run([*install, "--python", environment / "bin/python", *packages], check=True)
    project = tmp_path / "project"
    project.mkdir()
    manifest = project / ("Pipfile" if lock == "Pipfile.lock" else "pyproject.toml")
    manifest.write_text(PIPFILE if lock == "Pipfile.lock" else PYPROJECT)
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    env |= {"PDM_PYPI_URL": INDEX, "PIPENV_IGNORE_VIRTUALENVS": "1"}
    tool = packages[0].partition("==")[0]
    subprocess.run(f"{tool} lock && {command}", shell=True, check=True, cwd=project, env=env)
    (found,) = read(project / exported).found
    assert found.name == "six" and SIX in str(found)
