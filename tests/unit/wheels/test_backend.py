"""What a source needs for its build."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import WheelError
from builder.wheels.backend import Backend, project_name, read_backend

LEGACY = Backend("setuptools.build_meta:__legacy__", ("setuptools>=40.8.0", "wheel"))


@pytest.mark.parametrize(
    ("pyproject", "expected"),
    [
        (None, LEGACY),
        ("[project]\nname = 'x'\n", LEGACY),
        (
            "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n",
            Backend("hatchling.build", ("hatchling",)),
        ),
        (
            "[build-system]\nrequires = []\nbuild-backend = 'own:a.b'\nbackend-path = ['tools']\n",
            Backend("own:a.b", (), ("tools",)),
        ),
        ("[build-system]\nrequires = ['setuptools']\n", Backend(LEGACY.name, ("setuptools",))),
    ],
)
def test_backend(tmp_path: Path, pyproject: str | None, expected: Backend) -> None:
    (tmp_path / "setup.py").touch()
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    assert read_backend(tmp_path, "x") == expected


@pytest.mark.parametrize(
    ("pyproject", "message"),
    [
        ("[build-system]\n", "[build-system] has no requires"),
        ("[build-system]\nrequires = [1]\n", "something else than texts"),
        ("[build-system]\nrequires = ['a b']\n", "pyproject.toml is not valid"),
        ("[build-system]\nrequires = []\nbackend-path = ['../x']\n", "leads out of the source"),
        ("[build-system]\nrequires = ['x @ https://a.example/${KEY}/x.whl']\n", "a variable or a control"),
        ('[build-system]\nrequires = ["x @ https://a.example/\\n-r/etc/x"]\n', "a variable or a control"),
        ("[build-system]\nrequires = ['x @ file:///srv/x-1-py3-none-any.whl']\n", "no address on the web"),
        ("build-system = 3\n", "pyproject.toml is not valid"),
        ("[[[", "pyproject.toml is not valid"),
        ("[build-system]\nrequires = 5\n", "pyproject.toml is not valid"),
    ],
)
def test_refused(tmp_path: Path, pyproject: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    with pytest.raises(WheelError) as e:
        read_backend(tmp_path, "demo")
    assert message in e.value.message and e.value.message.startswith("demo: ")


def test_no_package(tmp_path: Path) -> None:
    with pytest.raises(WheelError) as e:
        read_backend(tmp_path, "demo")
    assert "neither pyproject.toml nor setup.py" in e.value.message and "#subdirectory" in e.value.hint


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("pyproject.toml", "[project]\nname = 'My_Model'\n", "my-model"),
        ("pyproject.toml", "[tool.poetry]\nname = 'poem'\n", "poem"),
        ("pyproject.toml", "[project]\nname = 'not a name'\n", None),
        ("pyproject.toml", "[project]\nname = 3\n", "3"),
        ("setup.cfg", "[metadata]\nname = old\n", "old"),
        ("setup.cfg", "[metadata\n", None),
        ("setup.py", "from setuptools import setup\nsetup(version='1', name='older')\n", "older"),
        ("setup.py", "import setuptools\nsetuptools.setup(name=compute())\n", None),
        ("setup.py", "print(", None),
        ("setup.py", "-" * 1_000_000 + "1", None),
        ("setup.py", "setup(name='large')" + " " * 2_000_000, None),
        ("README", "", None),
    ],
)
def test_name(tmp_path: Path, file: str, text: str, name: str | None) -> None:
    """The settings of a build are found by the name, before anything is run."""
    (tmp_path / file).write_text(text)
    assert project_name(tmp_path) == name
