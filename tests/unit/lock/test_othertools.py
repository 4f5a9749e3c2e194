"""Files of other tools, given as environment file or as lock file: what they are, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import ConfigError, LockError
from builder.lock.environment import read_environment
from builder.lock.file import read_lock

PYPROJECT = '[project]\nname = "mine"\ndependencies = ["rich"]\n'
PIXI_LOCK = "version: 6\nenvironments:\n  default: {}\npackages:\n- conda: https://h.example/a.conda\n"


@pytest.mark.parametrize(
    ("name", "text", "what", "hint"),
    [
        (
            "requirements.txt",
            "# mine\nrich\nnumpy==1.26\n",
            "a list of pip requirements",
            "[-r requirements.txt]",
        ),
        (
            "deps.txt",
            "-r other.txt\ntorch>=2 ; python_version > '3'\n",
            "a list of pip",
            "'- pip: [-r deps.txt]'",
        ),
        ("requirements.txt", "rich\n", "a list of pip requirements", "builder init reads it"),
        ("pyproject.toml", PYPROJECT, "the settings of a Python project (TOML)", "builder init reads it"),
        ("pixi.toml", '[workspace]\nchannels = ["a"]\n', "a pixi project (TOML)", "builder init reads it"),
        ("x.toml", PYPROJECT, "TOML, not YAML", "name a conda environment file"),
        ("uv.lock", 'version = 1\n[[package]]\nname = "a"\n', "the lock file of uv", "lock: uv.lock"),
        ("pixi.lock", PIXI_LOCK, "the lock file of pixi", "lock: pixi.lock"),
        ("pylock.toml", 'lock-version = "1.0"\n', "a pylock.toml", "lock: pylock.toml"),
        (
            "poetry.lock",
            "[[package]]\n",
            "the lock file of poetry, which builder does not",
            "poetry export -f",
        ),
        ("pdm.lock", "[[package]]\n", "the lock file of pdm", "pdm export -f pylock"),
        ("Pipfile.lock", "{}\n", "the lock file of pipenv", "pipenv requirements --hash"),
        (
            "conda-lock.yml",
            "version: 1\nmetadata: {}\npackage: []\n",
            "a lock file of conda-lock",
            "lock: conda-lock.yml",
        ),
        ("Dockerfile", "FROM ubuntu\nRUN true\n", "a Dockerfile", "base: docker://HOST/REPOSITORY:TAG"),
        ("list.txt", "# x\n@EXPLICIT\nhttps://h.example/a.conda\n", "an explicit list", "lock: list.txt"),
    ],
)
def test_as_environment(tmp_path: Path, name: str, text: str, what: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_environment(tmp_path / name, "linux-64")
    assert caught.value.message.startswith(f"{tmp_path / name}: this is {what}")
    assert hint in caught.value.hint and "{name}" not in caught.value.hint


@pytest.mark.parametrize(
    ("name", "text", "what", "hint"),
    [
        ("uv.lock", 'version = 1\n[[package]]\nname = "a"\n', "the lock file of uv", "lock: uv.lock"),
        ("pixi.lock", PIXI_LOCK, "the lock file of pixi", "builder lock imports it"),
        ("requirements.txt", "rich\n", "a list of pip requirements", "remove 'lock:' from the recipe"),
        ("pyproject.toml", PYPROJECT, "the settings of a Python project", "builder lock"),
        ("environment.yml", "dependencies: [a]\n", "an environment file", "environment: environment.yml"),
    ],
)
def test_as_lock(tmp_path: Path, name: str, text: str, what: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(LockError) as caught:
        read_lock(tmp_path / name)
    assert caught.value.message.startswith(f"{tmp_path / name}: this is {what}")
    assert hint in caught.value.hint
