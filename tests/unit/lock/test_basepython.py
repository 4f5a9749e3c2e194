"""Environments that use the Python of the base image."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import BuilderError, ConfigError, SolveError
from builder.core.model import LockedBase, LockedPackage
from builder.core.settings import Settings
from builder.lock.basepython import check_base_python
from builder.lock.config.recipe import Recipe, load_recipe
from builder.lock.imported import import_lock
from builder.lock.inputs import Inputs, stale_reasons
from builder.lock.request import LockRequest
from builder.lock.solve import check_environment, lock_target

URL = "builder://base/usr/bin/python3.11/linux-64/python-3.11.2-venv_0.conda"
PYTHON = LockedPackage("python", "3.11.2", "conda", "linux-64", URL, "f" * 64)
BASE = LockedBase("debian:bookworm", f"sha256:{'b' * 64}", PYTHON)
UV = """\
version = 1
requires-python = "{0}"
[[package]]
name = "mine"
version = "1"
source = {{ virtual = "." }}
"""
EXPLICIT = f"@EXPLICIT\nhttps://conda.example/c/noarch/six-1.17-pyh_0.conda#{'e' * 32}\n"


def recipe(root: Path, **more: object) -> Recipe:
    (root / "recipes").mkdir(exist_ok=True)
    source = root / "recipes" / "t.yaml"
    source.write_text("base: debian:bookworm\npython: base\n")
    values = {"name": "t", "base": "debian:bookworm", "python": "base", "environment": "e.yml"}
    return Recipe.model_validate({**values, "root": root, "source": source, **more})


def environment(root: Path, *lines: str) -> None:
    (root / "e.yml").write_text("dependencies:\n" + "".join(f"- {line}\n" for line in lines))


def test_prefix() -> None:
    """The environment is not where the bases have theirs, unless the recipe says so."""
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml"}
    assert Recipe.model_validate(values).conda.prefix == "/opt/conda"
    assert Recipe.model_validate({**values, "python": "base"}).conda.prefix == "/opt/env"
    own = {**values, "python": "base-with-packages", "conda": {"prefix": "/own"}}
    assert Recipe.model_validate(own).conda.prefix == "/own"


def test_locked(tmp_path: Path, settings: Settings) -> None:
    """No channel is needed. The lock is stale when ``python:`` changes."""
    environment(tmp_path, "python>=3.11", "pip")
    made = recipe(tmp_path)
    check_environment(Inputs.read(made))
    lock = lock_target(LockRequest(Inputs.read(made), settings, base=BASE))
    assert lock.packages == (PYTHON,) and lock.channels == ()
    assert lock.record.inputs["python"] == '["base"]'
    assert stale_reasons(Inputs.read(made), lock) == []
    other = Inputs.read(recipe(tmp_path, python="base-with-packages"))
    assert stale_reasons(other, lock) == ["python changed: now with base-with-packages, without base"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("numpy", r"e.yml:3: numpy is a conda package, and \S+t.yaml:2: python takes Python from the base"),
        ("python=3.12", r"e.yml:3: python=3.12: the base debian:bookworm has Python 3.11.2"),
    ],
)
def test_refused(tmp_path: Path, settings: Settings, line: str, message: str) -> None:
    environment(tmp_path, "pip", line)
    with pytest.raises(SolveError, match=message):
        lock_target(LockRequest(Inputs.read(recipe(tmp_path)), settings, base=BASE))


def test_imported(tmp_path: Path, settings: Settings) -> None:
    """A lock of pip packages gets the Python of the base, if it is for that."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    (tmp_path / "uv.lock").write_text(UV.format(">=3.10"))
    made = recipe(tmp_path, lock="uv.lock", environment="")
    assert import_lock(LockRequest(Inputs.read(made), settings, base=BASE)).packages == (PYTHON,)
    (tmp_path / "uv.lock").write_text(UV.format(">=3.12"))
    with pytest.raises(SolveError, match="uv.lock: python >=3.12.*the base .* has Python 3.11.2"):
        import_lock(LockRequest(Inputs.read(made), settings, base=BASE))


def test_locks_with_conda_packages(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "conda.txt").write_text(EXPLICIT)
    made = recipe(tmp_path, lock="conda.txt", environment="")
    with pytest.raises(BuilderError, match=r"conda.txt: has conda packages \(six\)"):
        import_lock(LockRequest(Inputs.read(made), settings, base=BASE))
    with pytest.raises(ConfigError, match=r"t.yaml:2: python: conda-lock.yml is used unchanged"):
        check_base_python(recipe(tmp_path, lock="conda-lock.yml"))


def typed_recipe(hint: str, root: Path) -> Recipe:
    """The recipe with the lines of a hint typed into it."""
    lines = re.sub(r", (?=python:|base_packages:)", "\n", hint[hint.index(" base: ") + 1 :])
    (root / "recipes/typed.yaml").write_text(f"environment: pyproject.toml\n{lines}\n")
    return load_recipe("typed", root)


@pytest.mark.parametrize(
    ("requires", "base", "version"),
    [
        (">=3.12", "debian:trixie", "3.13.5"),
        (">=3.10,<3.11", "docker://docker.io/library/python:3.10-slim", "3.10.18"),
    ],
)
def test_another_base(tmp_path: Path, settings: Settings, requires: str, base: str, version: str) -> None:
    """Where a project requires another Python, the hint names a base that has one."""
    text = f'[project]\nname = "mine"\nversion = "1"\nrequires-python = "{requires}"\ndependencies = []\n'
    (tmp_path / "pyproject.toml").write_text(text)
    made = recipe(tmp_path, environment="pyproject.toml")
    with pytest.raises(SolveError) as caught:
        lock_target(LockRequest(Inputs.read(made), settings, base=BASE))
    typed = typed_recipe(caught.value.hint, tmp_path)
    assert (typed.base, typed.python) == (base, "base")
    python = replace(PYTHON, version=version)
    lock = lock_target(LockRequest(Inputs.read(typed), settings, base=LockedBase(base, BASE.digest, python)))
    assert lock.packages == (python,)


def test_python_version_file(tmp_path: Path, settings: Settings) -> None:
    """A .python-version that the project does not need is named with a version that the base has."""
    text = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = []\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / ".python-version").write_text("3.10\n")
    made = recipe(tmp_path, environment="pyproject.toml")
    with pytest.raises(SolveError) as caught:
        lock_target(LockRequest(Inputs.read(made), settings, base=BASE))
    typed = re.match(r"name Python (\S+) in (\S+):1; or take the Python of another base", caught.value.hint)
    assert typed is not None, caught.value.hint
    Path(typed[2]).write_text(typed[1])
    assert lock_target(LockRequest(Inputs.read(made), settings, base=BASE)).packages == (PYTHON,)
