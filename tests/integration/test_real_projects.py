"""Projects that other people wrote, cut down to what matters: cloned, built and running in three commands.

Those that need a decision of the user end in a hint. The tests type it as it is printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import uv

from tests.integration.conftest import CLONE
from tests.support.gitserver import Repo
from tests.support.programs import run_program

SETUP = (
    "from setuptools import setup\nsetup(name='{name}', packages=['{name}'], install_requires=[{needs}])\n"
)
POETRY = """\
[tool.poetry]
name = "colabfold"
version = "1.6"
description = "x"
authors = []
[tool.poetry.dependencies]
python = "^3.8"
six = "^1.16"
[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""
SETUP_CFG = "[metadata]\nname = mace-torch\n[options]\npackages = mace\ninstall_requires =\n    six\n"
BACKEND = "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
UV_MEMBER = """\
[project]
name = "langgraph"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["six", "checkpoint"]
[tool.uv.sources]
checkpoint = {path = "../checkpoint", editable = true}
"""
PACKAGE = "[project]\nname = 'checkpoint'\nversion = '1.0'\n"
VARIABLES = "dependencies: [python=3.11, {pip: [six]}]\nvariables: {MODEL_SIZE: '7'}\n"
FLAT = "[project]\nname = 'YOLOv5'\nversion = '7.0'\ndependencies = ['six']\n" + BACKEND
#: Files by path; what the image runs.
DIRECT: dict[str, tuple[Mapping[str, str], str]] = {
    "minGPT": (
        {"setup.py": SETUP.format(name="mingpt", needs="'six'"), "mingpt/__init__.py": "import six\n"},
        "import mingpt",
    ),
    "ColabFold": ({"pyproject.toml": POETRY, "colabfold/__init__.py": "import six\n"}, "import colabfold"),
    "mace": (
        {"pyproject.toml": BACKEND, "setup.cfg": SETUP_CFG, "mace/__init__.py": "import six\n"},
        "import mace",
    ),
    "ComfyUI": (
        {
            "pyproject.toml": "[project]\nname = 'ComfyUI'\nversion = '0.3'\n",
            "requirements.txt": "six\n",
            "main.py": "import nodes\n",
            "nodes.py": "import six\n",
        },
        "import main",
    ),
    "azureml": ({"environment.yml": VARIABLES}, "import os, six; os.environ['MODEL_SIZE']"),
}
#: The same, with the folder in which a user begins.
HINTED: dict[str, tuple[Mapping[str, str], str, str]] = {
    "nanoGPT": ({"train.py": "import os, six\n", "model.py": "import six\n"}, "import train", "."),
    "examples": ({"mnist/requirements.txt": "six\n", "mnist/main.py": "import six\n"}, "import main", "."),
    "langgraph": (
        {
            "libs/langgraph/pyproject.toml": UV_MEMBER + BACKEND,
            "libs/langgraph/langgraph/__init__.py": "import six, checkpoint\n",
            "libs/checkpoint/pyproject.toml": PACKAGE + BACKEND,
            "libs/checkpoint/checkpoint/__init__.py": "",
        },
        "import langgraph",
        "libs/langgraph",
    ),
    "yolov5": (
        {
            "pyproject.toml": FLAT,
            "requirements.txt": "six\n",
            "models/__init__.py": "import six\n",
            "segment/__init__.py": "",
        },
        "import models, segment",
        ".",
    ),
    "RFdiffusion": (
        {
            "setup.py": SETUP.format(name="rfdiffusion", needs="'se3-transformer'"),
            "rfdiffusion/__init__.py": "import se3_transformer\n",
            "env/SE3Transformer/setup.py": "from setuptools import setup\n"
            "setup(name='se3-transformer', packages=['se3_transformer'])\n",
            "env/SE3Transformer/se3_transformer/__init__.py": "",
        },
        "import rfdiffusion",
        ".",
    ),
}
_TYPED = re.compile(r"hint:.*?((?:cd|rm|printf|builder) .*)")


class User:
    """Somebody with a clone, who types commands."""

    def __init__(self, home: Path, cache: Path) -> None:
        self.folder = home / "clone"
        programs = home / "bin"
        programs.mkdir(parents=True)
        (programs / "builder").write_text(f'#!/bin/sh\nexec {sys.executable} -m builder "$@"\n')
        (programs / "builder").chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self._env = {**os.environ, "PYTHONPATH": str(CLONE), "BUILDER_CACHE": str(cache), "PATH": path}

    def write(self, files: Mapping[str, str], start: str = ".") -> None:
        """Write the files of a clone, and go to one of its folders."""
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        (self.folder / ".git").mkdir(exist_ok=True)
        self.folder /= start

    def type(self, line: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Type a line into a shell, which goes to another folder if the line says so."""
        done = run_program(["bash", "-c", f"cd {self.folder} && {line} && pwd >&2"], self._env, check=check)
        if not done.returncode:
            self.folder = Path(done.stderr.splitlines()[-1])
        return done

    def follow(self, line: str) -> None:
        """Type a line that fails, and what the hint says."""
        done = self.type(line, check=False)
        found = _TYPED.search(done.stderr)
        assert done.returncode and found, done.stderr
        self.type(re.sub("builder init", "builder init -y", found[1]))


@pytest.fixture
def user(tmp_path: Path, cache: Path) -> User:
    return User(tmp_path, cache)


@pytest.mark.parametrize("name", DIRECT)
def test_three_commands(user: User, name: str) -> None:
    files, code = DIRECT[name]
    user.write(files)
    user.type("builder init -y")
    user.type("builder build")
    user.type(f'builder run -- python -c "{code}"')


@pytest.mark.parametrize("name", HINTED)
def test_hints(user: User, name: str) -> None:
    """The first command, or the build, says what to type."""
    files, code, start = HINTED[name]
    user.write(files, start)
    if name == "langgraph":
        subprocess.run([uv.find_uv_bin(), "lock", "--quiet"], cwd=user.folder, check=True)
    is_read = user.type("builder init -y", check=False).returncode == 0
    user.follow("builder build" if is_read else "builder init -y")
    target = "copied" if name == "yolov5" else ""
    user.type(f"builder build {target}")
    user.type(f'builder run {target} -- python -c "{code}"')


def test_other_python(user: User) -> None:
    """nanochat: a Python that the channel does not have; the hint names the file that chooses it."""
    user.write({".python-version": "3.10\n", "requirements.txt": "six\n"})
    user.type("builder init -y")
    failed = user.type("builder build", check=False)
    found = re.search(r"name Python (3\.\d+) in (\S+):1", failed.stderr)
    assert found, failed.stderr
    Path(found[2]).write_text(found[1])
    user.type("builder build")


def test_repository_of_metadata(user: User, tmp_path: Path) -> None:
    """graphcast: setup.py names a git repository, which only the build of the project knows."""
    tool = Repo(tmp_path / "tool")
    tool.write("xarray_jax/__init__.py", "VALUE = 42\n")
    tool.commit(setup_py=SETUP.format(name="xarray_jax", needs=""))
    needs = f"'xarray_jax @ git+{tool.url}@main'"
    user.write({"setup.py": SETUP.format(name="graphcast", needs=needs), "graphcast/__init__.py": ""})
    user.type("builder init -y")
    user.type("builder build")
    shown = user.type('builder run -- python -c "import graphcast, xarray_jax; print(xarray_jax.VALUE)"')
    assert shown.stdout.strip() == "42"
