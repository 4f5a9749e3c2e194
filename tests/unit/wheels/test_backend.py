"""What a source needs for its build."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import WheelError
from builder.wheels.backend import Backend, read_backend

LEGACY = Backend("setuptools.build_meta:__legacy__", ("setuptools>=40.8.0", "wheel"))


@pytest.mark.parametrize(
    ("pyproject", "expected"),
    [
        (None, LEGACY),
        (
            "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n",
            Backend("hatchling.build", ("hatchling",)),
        ),
        (
            "[build-system]\nrequires = []\nbuild-backend = 'own:a.b'\nbackend-path = ['tools']\n",
            Backend("own:a.b", (), ("tools",)),
        ),
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
        ("[build-system]\nrequires = ['a b']\n", "pyproject.toml is not valid"),
        ("[build-system]\nrequires = []\nbackend-path = ['../x']\n", "leads out of the source"),
        ("[build-system]\nrequires = ['x @ https://a.example/${KEY}/x.whl']\n", "a variable or a control"),
        ('[build-system]\nrequires = ["x @ https://a.example/\\n-r/etc/x"]\n', "a variable or a control"),
        ("[build-system]\nrequires = ['x @ file:///srv/x-1-py3-none-any.whl']\n", "no address on the web"),
        ("build-system = 3\n", "pyproject.toml is not valid"),
    ],
)
def test_refused(tmp_path: Path, pyproject: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    with pytest.raises(WheelError) as e:
        read_backend(tmp_path, "demo")
    assert message in e.value.message and e.value.message.startswith("demo: ")
