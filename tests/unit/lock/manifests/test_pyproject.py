"""pyproject.toml: groups and extras, and the sources and settings of uv."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import ConfigError
from builder.lock.manifests import read_manifest
from builder.lock.spec import Environment, IndexPin
from tests.support.parts import need_root

HEAD = "[project]\nname = 'mine'\nversion = '1'\n"
INDEXES = """\
[[tool.uv.index]]
name = "cpu"
url = "https://w.example/cpu"
explicit = true
[[tool.uv.index]]
name = "cu"
url = "https://w.example/cu"
explicit = true
"""
CPU, CU = (IndexPin("torch", f"https://w.example/{name}") for name in ("cpu", "cu"))


def read(folder: Path, text: str, *groups: str) -> Environment:
    (folder / "pyproject.toml").write_text(HEAD + text)
    return read_manifest(folder / "pyproject.toml", "linux-64", groups=groups)


def pip(found: Environment) -> list[str]:
    return [spec.text for spec in found.pip]


@pytest.mark.parametrize(
    ("text", "groups", "expected"),
    [
        pytest.param("type_check = ['a']", ["type-check"], ["a"], id="another spelling of the group"),
        pytest.param(
            "Dev = [{include-group = 'type_check'}]\ntype-check = ['a']",
            ["dev"],
            ["a"],
            id="of an included one",
        ),
        pytest.param(
            "dev = [{include-group = 'lnit'}]", ["dev"], "'lnit' not found", id="a group that is missing"
        ),
        pytest.param("dev = [{include-group = 'dev'}]", ["dev"], "Cyclic", id="a group that includes itself"),
        pytest.param("a_b = []\na-b = []", ["a-b"], "Duplicate", id="two spellings of a name"),
        pytest.param("dev = [1]", ["dev"], "Invalid dependency group item: 1", id="no requirement"),
    ],
)
def test_dependency_groups(tmp_path: Path, text: str, groups: list[str], expected: list[str] | str) -> None:
    """PEP 735: names are normalised, and what is not valid is an error."""
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected) as error:
            read(tmp_path, f"[dependency-groups]\n{text}\n", *groups)
        assert f"{tmp_path / 'pyproject.toml'}:4: " in error.value.message
    else:
        assert pip(read(tmp_path, f"[dependency-groups]\n{text}\n", *groups)) == expected


def test_extras_of_the_project(tmp_path: Path) -> None:
    """An extra that names others keeps its marker, in any spelling, and may name itself."""
    text = """dependencies = []
[project.optional-dependencies]
win = ["w"]
Old_Python = ["o"]
all = ["a", "mine[win] ; sys_platform == 'win32'", "Mine[old-python]; python_version < '3.12'", "mine[all]"]
"""
    assert pip(read(tmp_path, text, "all")) == [
        "a",
        'w; sys_platform == "win32"',
        'o; python_version < "3.12"',
    ]


@pytest.mark.parametrize(
    ("sources", "pins", "lines", "urls"),
    [
        pytest.param("{index = 'cpu'}", [CPU], ["torch>=2"], [], id="an index"),
        pytest.param(
            "[{index = 'cpu', marker = \"sys_platform == 'linux'\"},"
            " {index = 'cu', marker = \"os_name == 'nt'\"}]",
            [IndexPin("torch", CPU.url, 'sys_platform == "linux"')],
            ["torch>=2"],
            [],
            id="an index for another platform",
        ),
        pytest.param("{index = 'cpu', extra = 'x'}", [], ["torch>=2"], [], id="of another extra"),
        pytest.param("{index = 'cpu', group = 'x'}", [], ["torch>=2"], [], id="of another group"),
        pytest.param(
            "{url = 'https://h.example/torch-2-py3-none-any.whl', marker = \"sys_platform == 'darwin'\"}",
            [],
            ["torch>=2"],
            [],
            id="a wheel for another platform",
        ),
        pytest.param(
            "{url = 'https://h.example/torch-2-py3-none-any.whl'}",
            [],
            ["torch @ https://h.example/torch-2-py3-none-any.whl"],
            [],
            id="a wheel",
        ),
        pytest.param(
            "{git = 'https://h.example/t', rev = 'v1', marker = \"python_version < '3.12'\"}",
            [],
            ["torch>=2"],
            ["https://h.example/t"],
            id="a repository for some Pythons",
        ),
    ],
)
def test_sources(
    tmp_path: Path, sources: str, pins: list[IndexPin], lines: list[str], urls: list[str]
) -> None:
    text = f"dependencies = ['torch>=2']\n[tool.uv.sources]\ntorch = {sources}\n{INDEXES}"
    found = read(tmp_path, text)
    assert (list(found.pins), pip(found), [source.url for source in found.sources]) == (pins, lines, urls)
    assert found.extra_index_urls == () and found.uv == {}


def test_conflicts(tmp_path: Path) -> None:
    """Extras that the file declares to be incompatible are refused, as by uv, unless one is chosen."""
    text = """dependencies = []
[project.optional-dependencies]
cpu = ["a"]
cu_12 = ["b"]
[tool.uv]
conflicts = [[{extra = "cpu"}, {extra = "cu-12"}]]
"""
    assert pip(read(tmp_path, text, "main", "cu_12")) == ["b"]
    with pytest.raises(ConfigError, match=":9: tool.uv.conflicts"):
        read(tmp_path, text, "cpu", "cu_12")


def test_included_groups(tmp_path: Path) -> None:
    """A group that is included keeps its sources and its Python, as with uv sync --only-group."""
    text = f"""dependencies = []
[dependency-groups]
Cu = ["torch>=2"]
dev = [{{include-group = "cu"}}, "b"]
[tool.uv.dependency-groups]
CU = {{requires-python = "<3.12"}}
[tool.uv.sources]
torch = {{index = "cu", group = "cu"}}
{INDEXES}"""
    found = read(tmp_path, text, "dev")
    assert (found.pins, pip(found)) == ((CU,), ["torch>=2", "b"])
    assert "python <3.12" in [spec.text for spec in found.conda]


def test_groups_with_the_project(tmp_path: Path) -> None:
    """A group that names the project has its dependencies; one of the name main is not all of them."""
    text = """dependencies = ["a"]
[project.optional-dependencies]
x = ["b"]
[dependency-groups]
dev = ["mine[x]", "c"]
main = ["d"]
"""
    assert pip(read(tmp_path, text, "dev")) == ["a", "b", "c"]
    assert pip(read(tmp_path, text)) == ["a"]
    assert pip(read(tmp_path, text, "main")) == ["a", "d"]


def test_project_of_a_group_with_a_marker(tmp_path: Path) -> None:
    text = """dependencies = ["a"]
[build-system]
requires = []
[dependency-groups]
dev = ["mine ; python_version < '3.11'"]
"""
    found = read(tmp_path, text, "dev")
    assert pip(found) == ["a; python_version < '3.11'".replace("'", '"')]
    assert [source.marker for source in found.sources] == ['python_version < "3.11"']


def test_index_of_a_requirement_for_others(tmp_path: Path) -> None:
    """uv takes it from there for packages that need it, also where its own line is for Windows."""
    line = "t ; sys_platform == 'win32'"
    found = read(tmp_path, f'dependencies = ["{line}"]\n[tool.uv.sources]\nt = {{index = "cpu"}}\n{INDEXES}')
    assert [pin.name for pin in found.pins] == ["t"] and pip(found) == [line]


def test_patch_releases_in_markers(tmp_path: Path) -> None:
    """A marker may be true from a patch release on."""
    marker = "python_full_version >= '3.11.3' and python_version < '3.12'"
    text = f"""dependencies = ["torch>=2 ; {marker}"]
[tool.uv.sources]
torch = {{index = "cu", marker = "{marker}"}}
{INDEXES}"""
    found = read(tmp_path, text)
    assert [pin.url for pin in found.pins] == [CU.url] and len(found.pip) == 1


def test_sources_of_extras(tmp_path: Path) -> None:
    """Only the sources of the chosen extra count."""
    text = f"""dependencies = []
[project.optional-dependencies]
cpu = ["torch>=2"]
cu = ["torch>=2"]
[tool.uv.sources]
torch = [{{index = "cpu", extra = "cpu"}}, {{index = "cu", extra = "cu"}}]
{INDEXES}"""
    assert [read(tmp_path, text, "main", extra).pins for extra in ("cpu", "cu")] == [(CPU,), (CU,)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"pip": ["torch"], "pins": (), "uv": {}}),
        (
            "[[tool.uv.index]]\nurl = 'https://c.example/s'\ndefault = true",
            {"index_url": "https://c.example/s"},
        ),
        ("[[tool.uv.index]]\nurl = 'https://c.example/s'", {"extra_index_urls": ("https://c.example/s",)}),
        ("[tool.uv]\nindex-url = 'https://c.example/s/'", {"index_url": "https://c.example/s"}),
        (
            "[tool.uv]\nindex-url = 'https://a.example/s'\n"
            "[[tool.uv.index]]\nurl = 'https://c.example/s'\ndefault = true",
            {"index_url": "https://c.example/s"},
        ),
        ("[tool.uv]\nextra-index-url = ['https://c.example/s']", {"uv": {"index-strategy": "first-index"}}),
        ("[tool.uv]\nfind-links = ['wheels']", {"find_links": ("wheels",)}),
        (
            "[tool.uv]\nno-binary-package = ['B']\nno-build = true",
            {"no_binary": ("b",), "only_binary": (":all:",)},
        ),
        ("[tool.uv]\nconstraint-dependencies = ['b<2']", {"uv": {"constraint-dependencies": ["b<2"]}}),
        ("[tool.uv]\ncache-dir = 'x'\nconflicts = []\n[tool.uv.pip]\nno-deps = true", {"uv": {}}),
        ("[dependency-groups]\nmain2 = []\n[tool.uv]\nenvironments = [\"sys_platform == 'linux'\"]", {}),
    ],
)
def test_settings(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found = read(tmp_path, f"dependencies = ['torch']\n{text}\n")
    got = {name: pip(found) if name == "pip" else getattr(found, name) for name in expected}
    assert got == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.uv]\nenvironments = [\"sys_platform == 'darwin'\"]", ":6: tool.uv.environments"),
        ("[tool.uv.sources]\na = {index = 'nowhere'}", "the index of a has no URL"),
        ("[tool.uv.sources]\na = {index = 'x', marker = 'nonsense'}", "wrong marker"),
        ("[[tool.uv.index]]\nurl = './wheels/simple'", ":6: the index './wheels/simple' is no URL"),
        ("[[tool.uv.index]]\nurl = 'https://h/s'\nexplicit = true\ndefault = true", "tool.uv.index.explicit"),
        (
            "[tool.uv]\noverride-dependencies = ['a==1']\n[tool.uv.sources]\na = {index = 'x'}",
            ":6: tool.uv.override-dependencies",
        ),
        (
            "[tool.uv]\nconstraint-dependencies = ['b==1']\n[tool.uv.sources]\nb = {index = 'x'}",
            ":6: tool.uv.constraint-dependencies",
        ),
        ("[tool.uv]\nenvironments = [\"python_version < '3.11'\"]", ":6: tool.uv.environments"),
        ("[[tool.uv.index]]\nurl = 'u'\nignore-error-codes = [403]", ":7: tool.uv.index.ignore-error-codes"),
        ("[tool.uv.sources]\na = {git = 'https://h/a', path = 'a.whl'}", ":6: tool.uv.sources.a.path"),
        ("[build-system]\nrequires = []\n[tool.uv.sources]\na = {path = 'lib'}", ":7: tool.uv.sources"),
        ("[tool.poetry.dependencies]\na = {path = 'lib'}", ":6: tool.poetry.dependencies.a.path"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        head = "dynamic = ['dependencies']" if "build-system" in text else "dependencies = ['a']"
        read(tmp_path, f"{head}\n{text}\n")
    assert message in error.value.message


def test_settings_in_another_file(tmp_path: Path) -> None:
    """uv reads a uv.toml in place of [tool.uv], so its indexes may not be dropped."""
    (tmp_path / "uv.toml").write_text("[[index]]\nurl = 'https://c.example/s'\n")
    with pytest.raises(ConfigError, match=r"uv\.toml: uv reads it in place of \[tool\.uv\]"):
        read(tmp_path, "dependencies = ['a']\n")


def test_workspace_root(tmp_path: Path) -> None:
    """Members have the settings and sources of the workspace's root, also those that others need."""
    files = {
        ".": f"{INDEXES}[tool.uv]\nconstraint-dependencies = ['c<2']\n"
        "[tool.uv.workspace]\nmembers = ['libs/*']\n"
        "[tool.uv.sources]\ntorch = {index = 'cpu'}\n",
        "libs/mine": "[project]\nname = 'mine'\ndependencies = ['other']\n"
        "[tool.uv.sources]\nother = {workspace = true}\n",
        "libs/other": "[project]\nname = 'other'\ndependencies = ['torch', 'x']\n"
        "[tool.uv.sources]\nx = {git = 'https://h.example/x'}\n",
    }
    for name, text in files.items():
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "pyproject.toml").write_text(text)
    (tmp_path / ".python-version").write_text("3.12\n")
    found = read_manifest(tmp_path / "libs/mine/pyproject.toml", "linux-64", tmp_path)
    assert found.pins == (CPU,)
    assert found.uv == {"constraint-dependencies": ["c<2"]}
    assert [source.url for source in found.sources] == ["libs/other", "https://h.example/x"]
    assert [spec.text for spec in found.conda] == ["python", "python=3.12", "pip"]


@pytest.mark.root
def test_workspace_of_another_user(tmp_path: Path) -> None:
    """One in a folder above, as /tmp, names no index for a project of this user."""
    need_root()
    (tmp_path / "mine").mkdir()
    root = tmp_path / "pyproject.toml"
    root.write_text(
        f"{INDEXES}[tool.uv.workspace]\nmembers = ['mine']\n[tool.uv.sources]\ntorch = {{index = 'cpu'}}\n"
    )
    assert read(tmp_path / "mine", "dependencies = ['torch']\n").pins == (CPU,)
    os.chown(root, 12345, 12345)
    assert read(tmp_path / "mine", "dependencies = ['torch']\n").pins == ()
    root.write_text("not TOML")
    assert pip(read(tmp_path / "mine", "dependencies = ['torch']\n")) == ["torch"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3.11\n3.12\n", "python=3.11"),
        ("# the cluster's\n\n3.11.4  # old\n", "python=3.11.4"),
        ("3", "python=3"),
        ("cpython@3.12", "python=3.12"),
        ("cpython-3.12.4-linux-x86_64-gnu", "python=3.12.4"),
        (">=3.11,<3.13", "python >=3.11,<3.13"),
        ("3.13t", "python 3.13.* *_cp313t"),
        ("3.14+freethreaded", "python 3.14.* *_cp314t"),
        ("my-env", None),
        ("pypy@3.10", None),
        ("system", None),
    ],
)
def test_python_version(tmp_path: Path, text: str, expected: str | None) -> None:
    """The forms of .python-version that uv and pyenv read; others are errors."""
    (tmp_path / ".python-version").write_text(text)
    if expected is None:
        with pytest.raises(ConfigError, match=r"\.python-version:1: .* is no version of CPython"):
            read(tmp_path, "dependencies = ['a']\n")
    else:
        assert expected in [spec.text for spec in read(tmp_path, "dependencies = ['a']\n").conda]
