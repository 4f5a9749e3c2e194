"""What a folder contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.cli.start.found import asks_for, candidate, candidates, installs_project, own_code
from builder.core.errors import UsageError


def test_precedence(tmp_path: Path) -> None:
    """A lock of conda comes before an environment, and that before files of other tools."""
    names = ["requirements.txt", "uv.lock", "pixi.toml", "pixi.lock", "environment.yml", "conda-lock.yml"]
    for name in names:
        (tmp_path / name).touch()
    assert [found.path.name for found in candidates(tmp_path)] == [
        "conda-lock.yml",
        "environment.yml",
        "pixi.lock",
        "pixi.toml",
        "uv.lock",
        "requirements.txt",
    ]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[project]\ndependencies = ['x']", 1),
        ("[project]\nname = 'x'", 0),
        ("[build-system]\nrequires = []", 1),
        ("[build-system]\nrequires = []\n[tool.poetry]\npackage-mode = false", 0),
        ("[build-system]\nrequires = []\n[tool.uv]\npackage = false", 0),
        ("[tool.pixi.dependencies]\nnumpy = '*'", 1),
        ("[tool.ruff]\n", 0),
    ],
)
def test_pyproject(tmp_path: Path, text: str, count: int) -> None:
    """A file with settings of tools alone names no packages."""
    (tmp_path / "pyproject.toml").write_text(text)
    assert len(candidates(tmp_path)) == count


@pytest.mark.parametrize(
    ("name", "text", "lock"),
    [
        ("gpu.lock.yml", "version: 1\nmetadata:\npackage:\n", "conda-lock"),
        ("requirements-gpu.txt", "a==1\n", None),
        ("requirements.txt", "a==1 --hash=sha256:00\n", "requirements"),
        ("conda-linux-64.txt", "@EXPLICIT\nhttps://conda.example/c/linux-64/a-1-0.conda#00\n", "explicit"),
        ("uv.lock", "", "uvlock"),
    ],
)
def test_candidate(tmp_path: Path, name: str, text: str, lock: str | None) -> None:
    """Requirements with hashes and lists of conda are locks."""
    (tmp_path / name).write_text(text)
    assert candidate(tmp_path / name).lock == lock


@pytest.mark.parametrize("name", ["environment.yaml", "conda.yaml", "conda.yml", "env.yml", "env.yaml"])
def test_names_of_environments(tmp_path: Path, name: str) -> None:
    """A file with a usual name alone; settings of another program may be in env.yml."""
    (tmp_path / name).write_text("dependencies:\n- numpy\n")
    assert [found.path.name for found in candidates(tmp_path)] == [name]
    (tmp_path / "env.yml").write_text("DEBUG: 1\n")
    assert [found.path.name for found in candidates(tmp_path)] == ([] if name == "env.yml" else [name])


def test_wrong_candidates(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nope\.yml: no such file"):
        candidate(tmp_path / "nope.yml")
    with pytest.raises(UsageError, match=r"nope/a\.yml: no such file"):
        candidate(tmp_path / "nope" / "a.yml")
    (tmp_path / "setup.py").touch()
    with pytest.raises(UsageError) as error:
        candidate(tmp_path / "nope.yml")
    assert (error.value.hint or "").endswith(f"builder init --from {tmp_path}/setup.py")
    (tmp_path / "Pipfile").touch()
    with pytest.raises(UsageError, match="cannot read this file") as error:
        candidate(tmp_path / "Pipfile")
    assert "requirements.txt" in (error.value.hint or "")
    (tmp_path / "poetry.lock").touch()
    with pytest.raises(UsageError, match="cannot read this file") as error:
        candidate(tmp_path / "poetry.lock")
    assert "poetry export" in (error.value.hint or "")


def test_own_code(tmp_path: Path) -> None:
    """Scripts and packages at the top, and src; no tests, no settings of tools."""
    for name in ("train.py", "setup.py", "conftest.py", "test_x.py", "notes.txt"):
        (tmp_path / name).touch()
    for folder in ("model", "tests", ".venv", "src/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "train.py").write_text("import comfy.utils\n")
    for name in ("comfy/utils.py", "unused/x.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert [source for source, _ in own_code(tmp_path)] == ["train.py", "comfy", "model", "src"]


@pytest.mark.parametrize(
    ("name", "text", "installs"),
    [
        ("environment.yml", "dependencies:\n  - pip:\n      - -e .[full]\n", True),
        ("requirements.txt", "rich\n-e .[full]\n", True),
        ("pyproject.toml", "", True),
        ("setup.py", "import sys; sys.exit('nobody runs me')\n", True),
        ("uv.lock", "", True),
    ],
)
def test_installed_project(tmp_path: Path, name: str, text: str, installs: bool) -> None:
    """Code that is installed as a package is not copied a second time."""
    for folder in (tmp_path, tmp_path / "model"):
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n[build-system]\nrequires = []\n')
    if text:
        (tmp_path / name).write_text(text)
    (tmp_path / "uv.lock").touch()
    found = candidate(tmp_path / name)
    assert installs_project(found, asks_for(found, tmp_path)) == installs
    (tmp_path / "model" / "__init__.py").touch()
    (tmp_path / "train.py").touch()
    assert [source for source, _ in own_code(tmp_path, installed=True)] == ["train.py"]
