"""Requirements that name a source: what each form means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from builder.core.errors import ConfigError
from builder.lock.sourcespec import SpecContext, names_source, read_location, read_named
from builder.lock.spec import SourceSpec

SHA = "0123456789abcdef" * 4


def place(folder: Path) -> SpecContext:
    return SpecContext("env.yml:5", folder, folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "libs/one/setup.py", "dist/y-1.0.tar.gz", "environments/a.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (".", {"kind": "local", "url": "."}),
        ("./libs/one[b,A_x]", {"kind": "local", "url": "libs/one", "extras": ("a-x", "b")}),
        ("./dist/y-1.0.tar.gz", {"kind": "archive", "name": "y", "url": "dist/y-1.0.tar.gz"}),
        ("git+https://h.example/o/t.git@v1.0", {"url": "https://h.example/o/t.git", "revision": "v1.0"}),
        ("git+https://me:p%40w@h.example/t", {"url": "https://me:p%40w@h.example/t", "revision": ""}),
        ("git+ssh://git@h.example:22/o/t@r", {"url": "ssh://git@h.example:22/o/t", "revision": "r"}),
        ("git+https://h.example/@o/t@v1", {"url": "https://h.example/@o/t", "revision": "v1"}),
        (
            "git+https://h.example/t@v1#egg=My.Tool[x]&subdirectory=libs/one/",
            {"name": "my-tool", "extras": ("x",), "subdirectory": "libs/one", "revision": "v1"},
        ),
        (f"https://h.example/My_Tool-1.0.tar.gz#sha256={SHA}", {"name": "my-tool", "sha256": SHA}),
    ],
)
def test_forms(project: Path, text: str, values: dict[str, object]) -> None:
    assert names_source(text)
    found = read_location(text, place(project))
    assert isinstance(found, SourceSpec) and found.where == "env.yml:5" and found.text == text
    assert {key: getattr(found, key) for key in values} == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "t[a] @ git+https://h.example/t@v1 ; python_version < '3.12'",
            {"kind": "git", "extras": ("a",), "revision": "v1", "marker": 'python_version < "3.12"'},
        ),
        ("t @ https://h.example/x.tar.gz#subdirectory=a", {"kind": "archive", "subdirectory": "a"}),
        ("t @ file:libs/one", {"kind": "local", "url": "libs/one"}),
    ],
)
def test_named(project: Path, text: str, values: dict[str, object]) -> None:
    assert not names_source(text)
    found = read_named(Requirement(text), text, place(project))
    assert isinstance(found, SourceSpec) and found.name == "t"
    assert {key: getattr(found, key) for key in values} == values


def test_wheel_url(project: Path) -> None:
    """It needs no build."""
    found = read_location("https://h.example/My_Tool-1-py3-none-any.whl", place(project))
    assert not isinstance(found, SourceSpec)
    assert found.text == "my-tool @ https://h.example/My_Tool-1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("./nowhere", "does not exist", "it is relative to {folder}"),
        ("./environments", "has neither pyproject.toml nor setup.py", "for the project write '- .'"),
        ("./environments/a.yml", "is neither", "name a folder, a wheel or an archive"),
        ("../other", "is outside of the project", "copy it into the project"),
        ("git@h.example:o/t.git", "is a URL that pip does not know", "git+ssh://git@HOST"),
        ("git+https://h.example", "names no repository", "write git+https://HOST"),
        ("git+https://h.example/t@--upload-pack=id", "names no branch, tag or commit", "@BRANCH"),
        ("git+https://h.example/t#subdirectory=../x", "has a subdirectory with ..", "#subdirectory"),
        ("https://h.example/o/t", "is not the URL of a wheel or an archive", "git+https://h.example/o/t"),
        ("https://h.example/t.whl", "names no wheel: t.whl", "NAME-VERSION-PYTHON-ABI-PLATFORM"),
        (". ; python", "has a wrong marker", "python_version"),
        ("git+https://[x/t", "is not a valid URL or path", "correct it"),
    ],
)
def test_mistakes(project: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_location(text, place(project))
    assert caught.value.message.startswith("env.yml:5: ") and message in caught.value.message
    assert hint.replace("{folder}", str(project)) in caught.value.hint


def test_symlink_out_of_the_project(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "setup.py").write_text("")
    (project / "link").symlink_to(other)
    with pytest.raises(ConfigError, match="is outside of the project"):
        read_location("./link", place(project))


def test_shown(project: Path) -> None:
    """Without a password, and with everything else that decides what is built."""
    text = "git+https://me:hunter2@h.example/t@v1#egg=t[a]&subdirectory=x ; python_version > '3'"
    found = read_location(text, place(project))
    assert isinstance(found, SourceSpec)
    assert found.shown == "t[a] @ git+https://h.example/t@v1#subdirectory=x ; python_version > '3'"
    local = read_location("./libs/one[b]", place(project))
    assert isinstance(local, SourceSpec) and local.shown == "./libs/one[b]"
