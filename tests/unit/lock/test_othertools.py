"""Files of other tools, given as environment file or as lock file: what they are, and what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError, LockError
from builder.lock.environment import read_environment
from builder.lock.file import read_lock

PYPROJECT = '[project]\nname = "mine"\ndependencies = ["rich"]\n'
PIXI_LOCK = "version: 6\nenvironments:\n  default: {}\npackages:\n- conda: https://h.example/a.conda\n"


@pytest.mark.parametrize(
    ("name", "text", "what", "hint"),
    [
        ("requirements.txt", "# mine\nrich\n", "a list of pip requirements", "environment: requirements.txt"),
        (
            "conda-lock.yml",
            "version: 1\nmetadata: {}\npackage: []\n",
            "a lock file of conda-lock",
            "lock: conda-lock.yml",
        ),
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
        ("uv.lock", 'version = 1\n[[package]]\nname = "a"\n', "a lock file of uv", "lock: uv.lock"),
        (
            "python_env.yaml",
            "python: 3.10.4\nbuild_dependencies: [pip]\ndependencies: [-r requirements.txt]\n",
            "mlflow's python_env.yaml",
            "environment: requirements.txt",
        ),
        ("environment.yml", "dependencies: [a]\n", "an environment file", "environment: environment.yml"),
    ],
)
def test_as_lock(tmp_path: Path, name: str, text: str, what: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(LockError) as caught:
        read_lock(tmp_path / name)
    assert caught.value.message.startswith(f"{tmp_path / name}: this is {what}")
    assert hint in caught.value.hint
