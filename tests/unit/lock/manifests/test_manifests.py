"""Files of other tools as environment files."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.manifests import read_manifest
from builder.lock.manifests.reader import pinned_python
from builder.lock.spec import Environment, IndexPin

PYPROJECT = """\
[project]
name = "mine"
requires-python = ">=3.10,<4"
dependencies = ["flask>=3", "torch; sys_platform == 'linux'", "tool[fast]"]
[project.optional-dependencies]
plot = ["matplotlib"]
all = ["mine[plot]", "rich"]
[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
[[tool.uv.index]]
name = "cpu"
url = "https://wheels.example/cpu"
explicit = true
[[tool.uv.index]]
url = "https://more.example/simple"
[tool.uv.sources]
torch = {index = "cpu"}
tool = {git = "https://host.example/tool.git", tag = "v1", subdirectory = "python"}
"""

WORKSPACE = """\
[project]
dependencies = ["other"]
[tool.uv.sources]
other = {workspace = true}
"""


def read(path: Path, text: str, **options) -> Environment:
    path.write_text(text)
    return read_manifest(path, "linux-64", **options)


def texts(specs) -> list[str]:
    return [spec.text for spec in specs]


def test_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    found = read(path, PYPROJECT)
    assert texts(found.conda) == ["python >=3.10,<4", "pip"]
    assert found.channels == ("conda-forge",)
    assert [spec.name for spec in found.pip] == ["flask", "torch"]
    assert found.pip[0].where == f"{path}:4"
    assert found.extra_index_urls == ("https://more.example/simple",)
    assert found.pins == (IndexPin("torch", "https://wheels.example/cpu"),)
    (source,) = found.sources
    assert (source.kind, source.name, source.revision) == ("git", "tool", "v1")
    assert (source.subdirectory, source.extras) == ("python", ("fast",))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["dev"], ["pytest", "ruff"]),
        (["lint"], ["ruff"]),
        (["all"], ["matplotlib", "rich"]),
        (["main", "plot"], ["flask", "torch", "matplotlib"]),
    ],
)
def test_groups(tmp_path: Path, groups: list[str], expected: list[str]) -> None:
    """Groups include groups, and an extra of the project names others by the project's own name."""
    found = read(tmp_path / "pyproject.toml", PYPROJECT, groups=groups)
    assert [spec.name for spec in found.pip] == expected


def test_own_code(tmp_path: Path) -> None:
    """A project that is a package is built and installed, as uv does."""
    text = '[project]\nname = "a"\n[build-system]\nrequires = ["hatchling"]\n'
    (source,) = read(tmp_path / "pyproject.toml", text).sources
    assert (source.kind, source.url, source.editable) == ("local", ".", False)
    assert source.where == f"{tmp_path / 'pyproject.toml'}:3"
    assert not read(tmp_path / "pyproject.toml", f"{text}[tool.uv]\npackage = false\n").sources


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.py", "raise SystemExit\n"),
        ("pyproject.toml", "[tool.poetry]\nname = 'a'\n[build-system]\nrequires = ['poetry-core']\n"),
        (
            "pyproject.toml",
            "[project]\ndynamic = ['dependencies', 'optional-dependencies']\n[build-system]\nrequires = []\n",
        ),
    ],
)
def test_known_to_the_backend(tmp_path: Path, name: str, text: str) -> None:
    """Dependencies and extras that only a build knows: the project itself is all that is asked for."""
    (tmp_path / "setup.py").touch()
    found = read(tmp_path / name, text, groups=["main", "fast"])
    assert not found.lists_packages
    (source,) = found.sources
    assert (source.url, source.extras) == (".", ("fast",))


def test_workspace(tmp_path: Path) -> None:
    """A member that needs another one gets its folder."""
    other = tmp_path / "libs" / "other-folder"
    for folder in (other, tmp_path / "mine"):
        folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.uv.workspace]\nmembers = ['libs/*', 'mine']\n")
    (other / "pyproject.toml").write_text("[project]\nname = 'Other'\n")
    (source,) = read(tmp_path / "mine" / "pyproject.toml", WORKSPACE, root=tmp_path).sources
    assert source.url == "libs/other-folder"


def test_outside(tmp_path: Path) -> None:
    """A path to the same repository's other folder leads to the folder with both."""
    for folder in (".git", "libs/other", "libs/mine"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"\.\./other is outside of the project") as error:
        read(tmp_path / "libs" / "mine" / "requirements.txt", "../other\n")
    assert error.value.hint == f"cd {tmp_path}/libs && builder init --from mine/requirements.txt"


def test_python_version(tmp_path: Path) -> None:
    (tmp_path / ".python-version").write_text("3.12\n")
    found = read(tmp_path / "requirements.txt", "flask\n")
    assert texts(found.conda) == ["python", "python=3.12", "pip"]
    (tmp_path / ".python-version").write_text("pypy3.10\n")
    with pytest.raises(ConfigError, match=r"\.python-version:1: 'pypy3.10' is no version of CPython"):
        pinned_python(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "options", "message", "hint"),
    [
        ("pyproject.toml", PYPROJECT, {"groups": ["deb"]}, "dependency group 'deb'", "did you mean dev?"),
        ("pyproject.toml", "[tool.ruff]\n", {}, "no [project] with dependencies", "poetry export"),
        ("pyproject.toml", '[project]\ndynamic = ["dependencies"]\n', {}, "no [project]", "requirements.txt"),
        ("pyproject.toml", f"{WORKSPACE}", {}, ":2: other is of a workspace", "clone the whole repository"),
        ("requirements.txt", "flask\n", {"groups": ["dev"]}, "has no groups", "remove 'groups:'"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, text: str, options, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path / name, text, **options)
    assert message in error.value.message
    assert hint in error.value.hint
