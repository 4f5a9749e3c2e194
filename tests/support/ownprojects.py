"""Projects with a package of their own, and a user who types commands in them.

The package is called ``walk``. Its program ``say`` prints the text of its module, and ``train.py`` adds it to
``model.txt``. There is a project for each file that ``builder init`` reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support import parts
from tests.support.programs import run_program

CODE = 'TEXT = "first"\n\n\ndef main():\n    print(TEXT)\n'
TRAIN = 'import walk\n\nwith open("model.txt", "a") as model:\n    model.write(walk.TEXT + "\\n")\n'
_PROJECT = """\
[build-system]
requires = ["{requires}"]
build-backend = "{backend}"

[project]
name = "walk"
version = "0.1"
description = "x"
requires-python = ">=3.11"
dependencies = [
  "six",
]
scripts = {{say = "walk:main"}}
"""
SETUPTOOLS = _PROJECT.format(requires="setuptools", backend="setuptools.build_meta")
HATCHLING = _PROJECT.format(requires="hatchling", backend="hatchling.build")
FLIT = _PROJECT.format(requires="flit_core", backend="flit_core.buildapi")
SETUP = """\
from setuptools import find_packages, setup

setup(
    name="walk",
    version="0.1",
    packages=find_packages(),
    install_requires=[
        "six",
    ],
    entry_points={"console_scripts": ["say = walk:main"]},
)
"""
ENVIRONMENT = "channels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pip:\n      - -e .\n"
#: Imports the package from the image: the project folder, where it starts, has no folder of this name.
_IMPORT = 'python -c "import walk; walk.main()"'
#: Variables that this machine's network needs begin with these.
_NETWORK = ("PIP_", "UV_", "SSL_", "REQUESTS_CA", "http_proxy", "https_proxy", "no_proxy", "HTTP_", "HTTPS_")


@dataclass(frozen=True)
class Kind:
    """A project as its author wrote it."""

    files: Mapping[str, str]
    """Besides the package and ``train.py``."""
    package: str
    """The folder of the package."""
    say: str = "say"
    """The command that prints the text of the code in the image."""
    before_lock: str = ""
    """The command for another tool's lock, when the requirements have changed."""

    @property
    def requirements(self) -> str:
        """The file that names what the package requires."""
        return next(name for name in ("pyproject.toml", "setup.py") if name in self.files)

    def write(self, folder: Path) -> None:
        """Write the files of the project into a new folder."""
        write_files(folder, {**self.files, f"{self.package}/__init__.py": CODE, "train.py": TRAIN})


#: In a flat layout ``python -c`` would import the package from the project folder.
KINDS = {
    "environment.yml": Kind({"environment.yml": ENVIRONMENT, "pyproject.toml": SETUPTOOLS}, "src/walk"),
    "requirements.txt": Kind({"requirements.txt": "-e .\n", "setup.py": SETUP}, "walk"),
    "pyproject.toml": Kind({"pyproject.toml": HATCHLING}, "src/walk", _IMPORT),
    "uv.lock": Kind({"pyproject.toml": FLIT}, "src/walk", _IMPORT, "uv lock --quiet"),
    "setup.py": Kind({"setup.py": SETUP}, "walk"),
}


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their paths in a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def replace_text(path: Path, old: str, new: str) -> None:
    """Replace a text that a file must have."""
    text = path.read_text()
    assert old in text, f"{path} has no {old}:\n{text}"
    path.write_text(text.replace(old, new))


@dataclass(frozen=True)
class User:
    """Somebody who types commands in a folder, each of them in a new shell."""

    folder: Path
    cache: Path
    more: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the shell."""

    @property
    def _env(self) -> dict[str, str]:
        """Only what a shell has: a home, a path, the cache, and settings of this machine's network."""
        kept = ("HOME", "BUILDER_MIRRORS", "PYTHONPYCACHEPREFIX")
        env = {k: v for k, v in os.environ.items() if k in kept or k.startswith(_NETWORK)}
        path = f"{self._programs()}:{os.environ['PATH']}"
        return {**env, "PATH": path, "BUILDER_CACHE": str(self.cache), **self.more}

    def _programs(self) -> Path:
        """Return a folder with the commands ``builder`` and ``uv`` of this clone."""
        folder = self.cache.parent / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("builder", "uv"):
            program = folder / name
            if not program.exists():
                line = f'PYTHONPATH="{parts.CLONE}" exec "{sys.executable}" -m {name} "$@"'
                program.write_text(f"#!/bin/sh\n{line}\n")
                program.chmod(0o755)
        return folder

    def type(self, line: str, *, code: int = 0, offline: bool = False) -> CompletedProcess[str]:
        """Type a line into a shell; any other exit code fails the test, with the output.

        Args:
            line: of the shell.
            code: the exit code.
            offline: without network, and without mirrors.
        """
        env, command = self._env, ["bash", "-c", line]
        if offline:
            env.pop("BUILDER_MIRRORS", None)
            command = [*_without_network(), *command]
        done = run_program(command, env, check=False, cwd=self.folder)
        if done.returncode != code:
            ended = f"ended with {done.returncode}, not {code}"
            pytest.fail(f"{self.folder}$ {line}\n{ended}:\n{done.stdout}{done.stderr}")
        return done


def _without_network() -> list[str]:
    """Return a command that runs another one in an empty network namespace."""
    command = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net"]
    if run_program([*command, "true"], os.environ, check=False).returncode:
        parts.part_missing("this machine allows no network namespaces")
    return command
