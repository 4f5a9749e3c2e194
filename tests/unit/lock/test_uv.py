"""What a real uv solves for the projects of its users, from indexes on loopback."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builder.core.errors import ConfigError, SolveError
from builder.core.model import LockedPackage
from builder.core.progress import Reporter
from builder.core.settings import Settings
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs, recorded_inputs
from builder.lock.pip import solve_pip
from builder.lock.request import SolveRequest
from tests.support.fileserver import Server
from tests.support.wheels import make_wheel

PYTHON = LockedPackage("python", "3.11.2", "conda", "linux-64", "https://h/python-3.11.2-0.conda", "0" * 64)
HEAD = "[project]\nname = 'mine'\nversion = '1'\n"
EXPLICIT = "[[tool.uv.index]]\nname = 'cpu'\nurl = '{cpu}'\nexplicit = true\n"
#: Wheels by index: name, version, requirements.
WHEELS: dict[str, list[tuple[str, str, Sequence[str]]]] = {
    "pypi": [
        ("torch", "2.0", ()),
        ("torch", "3.0", ()),
        ("vision", "1.0", ["torch"]),
        ("tool", "9.0", ["dep<2"]),
        ("dep", "1.0", ()),
        ("dep", "2.0", ()),
        ("early", "1.0rc1", ()),
    ],
    "cpu": [("torch", "2.0+cpu", ()), ("vision", "9.0", ())],
    "corp": [("tool", "1.0", ())],
}


class Warnings(Reporter):
    """Records warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def urls(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The URLs of the indexes; the first one is pip's."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for index, wheels in WHEELS.items():
        pages: dict[str, str] = {}
        for name, version, requires in wheels:
            path = make_wheel(tmp_path / "made" / index, name, version, requires=requires)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            url = server.put(f"/{index}/files/{path.name}", path.read_bytes())
            pages[name] = pages.get(name, "") + f'<a href="{url}#sha256={digest}">{path.name}</a>\n'
        for name, page in pages.items():
            server.put(f"/{index}/simple/{name}/", page.encode())
    found = {index: f"{server.url}/{index}/simple" for index in WHEELS}
    monkeypatch.setenv("PIP_INDEX_URL", found["pypi"])
    return found


@pytest.fixture
def solve(tmp_path: Path, urls: dict[str, str]) -> Callable[..., tuple[dict[str, str], list[str]]]:
    """Solves a ``pyproject.toml``: returns versions and warnings."""

    def solved(text: str, *groups: str) -> tuple[dict[str, str], list[str]]:
        for name, url in urls.items():
            text = text.replace(f"{{{name}}}", url)
        (tmp_path / "pyproject.toml").write_text(HEAD + text)
        keys = {"environment": "pyproject.toml", "root": tmp_path, "groups": groups}
        recipe = Recipe.model_validate({"name": "t", "base": "debian:bookworm", **keys})
        settings = Settings.from_environment({"HOME": str(tmp_path), "BUILDER_CACHE": str(tmp_path / "c")})
        reporter = Warnings()
        environment = Inputs.read(recipe).environment
        request = SolveRequest(recipe, environment, settings, reporter=reporter)
        return {p.name: p.version for p in solve_pip(request, [PYTHON])}, reporter.texts

    return solved


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"dependencies = ['torch', 'vision']\n[tool.uv.sources]\ntorch = {{index = 'cpu'}}\n{EXPLICIT}",
            {"torch": "2.0+cpu", "vision": "1.0"},
            id="an index that alone may have one package, and no other one",
        ),
        pytest.param(
            f"dependencies = ['torch', 'vision']\n[tool.uv.sources]\n"
            f"torch = [{{index = 'cpu', marker = \"python_version < '3.12'\"}}]\n{EXPLICIT}",
            {"torch": "2.0+cpu", "vision": "1.0"},
            id="a source for some Pythons",
        ),
        pytest.param(
            "dependencies = ['tool']\n[[tool.uv.index]]\nurl = '{corp}'\n",
            {"tool": "1.0"},
            id="the first index that has the package",
        ),
        pytest.param(
            "dependencies = ['tool']\n[[tool.uv.index]]\nurl = '{corp}'\n"
            "[tool.uv]\nindex-strategy = 'unsafe-best-match'\n",
            {"tool": "9.0", "dep": "1.0"},
            id="the best version of all indexes, where the file says so",
        ),
        pytest.param(
            "dependencies = ['tool']\n[tool.uv]\noverride-dependencies = ['dep==2.0']\n",
            {"tool": "9.0", "dep": "2.0"},
            id="overrides",
        ),
        pytest.param(
            "dependencies = ['dep>=1']\n[tool.uv]\nresolution = 'lowest'\n", {"dep": "1.0"}, id="resolution"
        ),
    ],
)
def test_as_uv(solve: Callable[..., tuple[dict[str, str], list[str]]], text: str, expected: object) -> None:
    assert solve(text) == (expected, [])


def test_only_index(solve: Callable[..., tuple[dict[str, str], list[str]]]) -> None:
    """The default index takes the place of PyPI, whatever that has."""
    text = "[[tool.uv.index]]\nurl = '{corp}'\ndefault = true\n"
    assert solve(f"dependencies = ['tool']\n{text}")[0] == {"tool": "1.0"}
    with pytest.raises(SolveError, match="dep was not found"):
        solve(f"dependencies = ['dep']\n{text}")


def test_index_of_another_platform(solve: Callable[..., tuple[dict[str, str], list[str]]]) -> None:
    """uv lock takes the index of such a line also for what others need: never that of another package."""
    line = "torch ; sys_platform == 'win32'"
    text = f'dependencies = ["vision", "{line}"]\n[tool.uv.sources]\ntorch = {{index = "cpu"}}\n{EXPLICIT}'
    with pytest.raises(SolveError, match="toml:4: torch is needed by others") as error:
        solve(text)
    assert error.value.hint == "add a line without a marker: torch"
    assert solve(text.replace('"vision", ', ""))[0] == {}


def test_warnings(solve: Callable[..., tuple[dict[str, str], list[str]]], tmp_path: Path) -> None:
    """uv's warning about an extra that does not exist; and a pre-release that nobody named."""
    path = tmp_path / "pyproject.toml"
    assert solve("dependencies = ['torch[rocm]', 'early']\n")[1] == [
        f"{path}: The package `torch==3.0` does not have an extra named `rocm`",
        f"{path}: pre-releases, as no other release fits: early 1.0rc1",
    ]
    assert solve("dependencies = ['early>=1.0rc1']\n")[1] == []


def test_date(solve: Callable[..., tuple[dict[str, str], list[str]]]) -> None:
    """The index has no upload dates: no date helps (uv 0.13.9)."""
    with pytest.raises(SolveError, match="exclude-newer") as error:
        solve("dependencies = ['dep']\n[tool.uv]\nexclude-newer = '2020-01-01'\n")
    assert "hides dep: where the index has no upload dates, leave it out" in error.value.hint


def test_variable_in_a_setting(
    solve: Callable[..., tuple[dict[str, str], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv replaces variables in every URL: a file may not choose one and the host that gets its value."""
    monkeypatch.setenv("SECRET", "value")
    text = (
        "dependencies = ['dep']\n[tool.uv]\nconstraint-dependencies = ['dep @ https://h.example/$SECRET']\n"
    )
    with pytest.raises(ConfigError, match="not for other settings of uv"):
        solve(text)


def test_recorded(tmp_path: Path) -> None:
    """A changed setting or index makes a lock stale; a project without them records neither."""

    def options(text: str) -> str:
        (tmp_path / "pyproject.toml").write_text(f"{HEAD}dependencies = ['a']\n{text}")
        keys = {"name": "t", "base": "debian:bookworm", "environment": "pyproject.toml", "root": tmp_path}
        return recorded_inputs(Inputs.read(Recipe.model_validate(keys)))["pip-options"]

    source = f"[tool.uv.sources]\na = {{index = 'cpu'}}\n{EXPLICIT.format(cpu='https://w.example/cpu')}"
    assert options("") == "{}"
    assert options(source) == '{"pins":["a https://w.example/cpu"]}'
    assert options("[tool.uv]\nprerelease = 'allow'\n") == '{"uv":{"prerelease":"allow"}}'
