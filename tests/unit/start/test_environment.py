"""Environment files of new projects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from builder.lock.environment import read_environment
from builder.start.environment import choose_python, environment_text, minimal_environment
from builder.start.requirements import Requirements

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_text(tmp_path: Path) -> None:
    """Everything can be locked; what was left out is a comment."""
    path = tmp_path / "environment.yml"
    found = Requirements(
        tmp_path / "pyproject.toml",
        python=">=3.11",
        channels=["conda-forge", "bioconda"],
        conda=["numpy >=1.26,<2"],
        pip=["polars", "torch; python_version < '4' # x"],
        options=["--extra-index-url https://example.org/simple"],
        left_out=[("-e .", "an editable package")],
    )
    path.write_text(environment_text(found, "3.12"))
    read = read_environment(path, "linux-64")
    assert read.channels == ("conda-forge", "bioconda")
    assert [spec.text for spec in read.conda] == ["python=3.12", "numpy >=1.26,<2", "pip"]
    assert [spec.name for spec in read.pip] == ["polars", "torch"]
    assert read.extra_index_urls == ("https://example.org/simple",)
    assert "# left out: -e .  (an editable package)" in path.read_text()
    assert "from now on edit this file" in path.read_text()


def test_own_python(tmp_path: Path) -> None:
    """A python among the conda packages stays the only one."""
    text = environment_text(Requirements(tmp_path / "pixi.toml", conda=["python 3.12.*"]), "3.11")
    assert yaml.safe_load(text)["dependencies"] == ["python 3.12.*"]


def test_requirements_file(tmp_path: Path) -> None:
    """A plain requirements file is named, not copied."""
    found = Requirements(tmp_path / "requirements.txt", pip=["polars"], options=["-f x"], is_file=True)
    text = environment_text(found, "3.11")
    assert yaml.safe_load(text)["dependencies"] == ["python=3.11", {"pip": ["-r requirements.txt"]}]


def test_minimal(tmp_path: Path) -> None:
    path = tmp_path / "environment.yml"
    path.write_text(minimal_environment("3.12"))
    read = read_environment(path, "linux-64")
    assert [spec.text for spec in read.conda] == ["python=3.12"] and read.channels == ("conda-forge",)


@pytest.mark.parametrize(
    ("specifier", "pinned", "debian", "version"),
    [
        ("", "", False, OWN),
        ("", "", True, "3.11"),
        (">=3.11", "", True, "3.11"),
        (">=3.11.2", "", True, "3.11"),
        (">=3.12,<3.13", "", True, "3.12"),
        ("~=3.13", "", False, "3.13"),
        ("==3.10.*", "", False, "3.10"),
        ("not a specifier", "", True, "3.11"),
        (">=99", "", True, "3.11"),
        (">=3.11", "3.13.2\n", True, "3.13"),
        ("", "cpython-3.12", False, "3.12"),
        ("", "pypy", True, "3.11"),
    ],
)
def test_choose_python(specifier: str, pinned: str, debian: bool, version: str) -> None:
    """.python-version decides, then requires-python, then what is at hand."""
    assert choose_python(specifier, pinned, debian=debian) == version


@pytest.mark.parametrize(
    "text", ["a\n  - pip:\n", "a\n- b: c", "a\x85b", "a\u2028b", "a\x1bb", "a\r\nb: c", "'"]
)
def test_hostile_texts(tmp_path: Path, text: str) -> None:
    """Texts of a project become neither entries nor keys, nor control characters."""
    found = Requirements(
        tmp_path / "pyproject.toml",
        python=text,
        conda=[f"n{text}"],
        pip=[f"p{text}"],
        left_out=[(text, text)],
    )
    data = yaml.safe_load(environment_text(found, "3.11"))
    assert data["dependencies"] == ["python=3.11", f"n{text}", {"pip": [f"p{text}"]}]
