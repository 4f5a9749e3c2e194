"""What a source needs for its build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.build.wheels.backend import Backend, project_name, read_backend, read_scm
from builder.core.errors import WheelError

LEGACY = Backend("setuptools.build_meta:__legacy__", ("setuptools>=40.8.0", "wheel"))


#: The first text is that of packaging since 26.4, which refuses the line itself.
_CONTROL = "Expected whitespace after URL|a variable or a control"


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
        ('[build-system]\nrequires = ["x @ https://a.example/\\n-r/etc/x"]\n', _CONTROL),
        ("[build-system]\nrequires = ['x @ file:///srv/x-1-py3-none-any.whl']\n", "no address on the web"),
        ("build-system = 3\n", "pyproject.toml is not valid"),
    ],
)
def test_refused(tmp_path: Path, pyproject: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    with pytest.raises(WheelError) as e:
        read_backend(tmp_path, "demo")
    assert any(text in e.value.message for text in message.split("|"))
    assert e.value.message.startswith("demo: ")


SCM = "[build-system]\nrequires = ['setuptools_scm[toml]>=8']\n"
DESCRIBE = "git describe --dirty --tags --long --abbrev=10 --match=*[0-9]*"
DYNAMIC = SCM + "[project]\ndynamic = ['version']\n"


@pytest.mark.parametrize(
    ("pyproject", "setup"),
    [
        ("", "setup(version='1.0')"),
        ("[build-system]\nrequires = ['setuptools', 'my-setuptools']\n", ""),
        (SCM + "[project]\nversion = '1.0'\n", ""),
        (SCM + "[tool]\nhatch = 3\n", ""),
        (SCM + "[tool.setuptools_scm]\nfallback_version = 3\n", ""),
        ("[", "use_scm_version"),
    ],
)
def test_version_not_from_git(tmp_path: Path, pyproject: str, setup: str) -> None:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    (tmp_path / "setup.py").write_text(setup)
    assert read_scm(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "command", "untagged"),
    [
        (
            "[project]\ndynamic = ['version']\n[[tool.dynamic-metadata]]\n"
            "provider = 'scikit_build_core.metadata.setuptools_scm'\n",
            DESCRIBE,
            "0.0",
        ),
        (SCM, DESCRIBE, "0.0"),
        (
            DYNAMIC + "[tool.setuptools_scm]\ntag = {prefix = 'a-', strict = true}\nfallback_version = '3'\n",
            DESCRIBE.replace("*[0-9]*", "a-*[0-9]*.*[0-9]*"),
            "a-3",
        ),
        (
            DYNAMIC + "[tool.setuptools_scm]\ngit_describe_command = \"git describe --dirty --match 'a*'\"\n",
            "git describe --dirty --match a*",
            "0.0",
        ),
        (
            DYNAMIC.replace("setuptools_scm[toml]", "hatch-vcs")
            + "[tool.hatch.version]\nfallback-version = '2'\n"
            + "raw-options.scm.git.describe_command = ['git', 'describe', '--first-parent']\n",
            "git describe --first-parent",
            "2",
        ),
    ],
)
def test_version_from_git(tmp_path: Path, text: str, command: str, untagged: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    scm = read_scm(tmp_path)
    assert scm is not None and (" ".join(scm.command), scm.untagged) == (command, untagged)


@pytest.mark.parametrize(
    ("setting", "root", "searches"),
    [("root = '..'", "..", False), ("search_parent_directories = true", ".", True)],
)
def test_top_of_the_repository(tmp_path: Path, setting: str, root: str, searches: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{SCM}[tool.setuptools_scm]\n{setting}\n")
    scm = read_scm(tmp_path)
    assert scm is not None and (scm.root, scm.searches) == (root, searches)


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("pyproject.toml", "[project]\nname = 'My.Tool'\n", "my-tool"),
        ("pyproject.toml", "[tool.poetry]\nname = 'a'\n", "a"),
        ("setup.cfg", "[metadata]\nname = mace-torch\nversion = %(x)s\n", "mace-torch"),
        (
            "setup.py",
            "import torch\nsetuptools.setup(name='pytorch3d')\n",
            "pytorch3d",
        ),
        ("setup.py", "NAME = 'a'\nsetup(name=NAME)\n", None),
        ("setup.py", "setup(\n", None),
        ("setup.cfg", "name = a\n", None),
    ],
)
def test_project_name(tmp_path: Path, file: str, text: str, name: str | None) -> None:
    """The name that is written as a text: settings of the build are found by it. Nothing is run."""
    (tmp_path / file).write_text(text)
    assert project_name(tmp_path) == name


def test_pipe(tmp_path: Path) -> None:
    """Nothing waits for a pipe in the place of a file that names the project."""
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        os.mkfifo(tmp_path / name)
    assert project_name(tmp_path) is None and read_scm(tmp_path) is None
