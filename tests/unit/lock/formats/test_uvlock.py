"""uv.lock with its pyproject.toml; uv itself decides what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LockError
from tests.unit.lock.formats.support import COMMIT, FILES, A, B, C, D, names, read, written

PROJECT = """\
[project]
name = "mine"
version = "1.0"
requires-python = ">=3.10"
dependencies = ["torch", "rich"]

[project.optional-dependencies]
plot = ["pyplot"]

[dependency-groups]
dev = ["pytest"]
docs = ["mike"]
"""
TORCH = '{ registry = "https://download.pytorch.org/whl/cpu" }'
PYPI = '{ registry = "https://index.example/simple" }'
LOCK = f"""\
version = 1
revision = 3
requires-python = ">=3.10"
resolution-markers = [
    "sys_platform == 'darwin'",
    "sys_platform != 'darwin'",
]

[[package]]
name = "mike"
version = "2.2.0"
source = {{ git = "https://github.com/o/mike.git?rev=main#{COMMIT}" }}

[[package]]
name = "mine"
version = "1.0"
source = {{ editable = "." }}
dependencies = [
    {{ name = "rich" }},
    {{ name = "torch", version = "2.5.1", source = {PYPI}, marker = "sys_platform == 'darwin'" }},
    {{ name = "torch", version = "2.5.1+cpu", source = {TORCH}, marker = "sys_platform != 'darwin'" }},
]

[package.optional-dependencies]
plot = [{{ name = "pyplot" }}]

[package.dev-dependencies]
dev = [{{ name = "pytest" }}]
docs = [{{ name = "mike" }}]

[[package]]
name = "pyplot"
version = "0.1"
source = {PYPI}
sdist = {{ url = "{FILES}/1/pyplot-0.1.tar.gz", hash = "sha256:{D}" }}

[[package]]
name = "pytest"
version = "8.3.3"
source = {PYPI}
wheels = [{{ url = "{FILES}/2/pytest-8.3.3-py3-none-any.whl", hash = "sha256:{A}" }}]

[[package]]
name = "rich"
version = "13.9.4"
source = {PYPI}
dependencies = [{{ name = "pytest", marker = "python_full_version < '3.11'" }}]
sdist = {{ url = "{FILES}/3/rich-13.9.4.tar.gz", hash = "sha256:{D}" }}
wheels = [{{ url = "{FILES}/3/rich-13.9.4-py3-none-any.whl", hash = "sha256:{B}" }}]

[[package]]
name = "torch"
version = "2.5.1"
source = {PYPI}
wheels = [{{ url = "{FILES}/4/torch-2.5.1-cp311-none-macosx_11_0_arm64.whl", hash = "sha256:{C}" }}]

[[package]]
name = "torch"
version = "2.5.1+cpu"
source = {TORCH}
wheels = [
    {{ url = "{FILES}/5/torch-2.5.1%2Bcpu-cp311-cp311-linux_x86_64.whl", hash = "sha256:{A}" }},
    {{ url = "{FILES}/5/torch-2.5.1%2Bcpu-cp310-cp310-linux_x86_64.whl", hash = "sha256:{B}" }},
]
"""


def project(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    written(tmp_path, "pyproject.toml", PROJECT)
    text = LOCK
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return written(tmp_path, "uv.lock", text)


def test_forks(tmp_path: Path) -> None:
    """Of several versions of one package the target's is taken; pytest is needed by Python 3.10 only."""
    lock = read(project(tmp_path))
    assert names(lock) == ["rich 13.9.4", "torch 2.5.1+cpu"]
    assert lock.packages[1].url.endswith("torch-2.5.1%2Bcpu-cp311-cp311-linux_x86_64.whl")
    assert lock.packages[1].sha256 == A
    assert lock.omitted == ("dev", "docs", "plot")
    assert "pytest 8.3.3" in names(read(tmp_path / "uv.lock", python="3.10.14"))


def test_groups(tmp_path: Path) -> None:
    path = project(tmp_path)
    everything = read(path, groups=["main", "dev", "docs", "plot"])
    assert names(everything) == ["pytest 8.3.3", "rich 13.9.4", "torch 2.5.1+cpu"]
    sdist, git = (source for source in everything.sources if source.kind != "local")
    assert (git.kind, git.name, git.revision) == ("git", "mike", COMMIT)
    assert (sdist.kind, sdist.name, sdist.sha256) == ("sdist", "pyplot", D)
    assert names(read(path, groups=["dev"])) == ["pytest 8.3.3"]
    with_extra = read(path, groups=["plot", "dev"])  # uv has no extra without the dependencies
    assert names(with_extra) == names(everything) and [s.name for s in with_extra.sources] == ["pyplot"]
    with pytest.raises(LockError, match="no group or extra 'doc'") as caught:
        read(path, groups=["main", "doc"])
    assert "did you mean docs" in caught.value.hint


def test_without_hash(tmp_path: Path) -> None:
    """Some indexes have no hashes: the wheel's URL stays, and builder locks the hash of what it downloads."""
    path = project(tmp_path, (f'py3-none-any.whl", hash = "sha256:{B}"', 'py3-none-any.whl"'))
    lock = read(path)
    assert [pin.text for pin in lock.pinned] == [f"rich @ {FILES}/3/rich-13.9.4-py3-none-any.whl"]


def test_folder_of_wheels(tmp_path: Path) -> None:
    """uv writes no hash of a wheel in a folder of ``find-links``."""
    url = f'url = "{FILES}/3/rich-13.9.4-py3-none-any.whl", hash = "sha256:{B}"'
    with pytest.raises(LockError, match="rich-13.9.4-py3-none-any.whl has no sha256") as caught:
        read(project(tmp_path, (url, 'path = "rich-13.9.4-py3-none-any.whl"')))
    assert "find-links" in caught.value.hint
    wheel = tmp_path / "links" / "rich-13.9.4-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    lock = read(project(tmp_path, (url, f'path = "{wheel}"')))
    assert [pin.text for pin in lock.pinned] == [f"rich @ {wheel.as_uri()}"]


def test_sdist_only(tmp_path: Path) -> None:
    path = project(tmp_path, ("rich-13.9.4-py3-none-any.whl", "rich-13.9.4-cp39-cp39-win_amd64.whl"))
    assert ("sdist", "rich") in [(s.kind, s.name) for s in read(path).sources]


def test_workspace(tmp_path: Path) -> None:
    """uv exports a local package by its path."""
    path = project(
        tmp_path,
        (
            f'source = {{ git = "https://github.com/o/mike.git?rev=main#{COMMIT}" }}',
            'source = { directory = "m" }',
        ),
    )
    for folder in (tmp_path, tmp_path / "m"):
        folder.mkdir(exist_ok=True)
        (folder / "setup.py").touch()
    assert ("local", "m") in [(s.kind, s.url) for s in read(path, groups=["main", "docs"]).sources]


def test_own_project(tmp_path: Path) -> None:
    """As with uv sync: installed if it has a build-system, and not with a group alone."""
    path = project(tmp_path)
    (source,) = read(path).sources
    assert (source.kind, source.url, source.editable) == ("local", ".", True)
    assert not read(path, groups=["dev"]).sources
    named = project(tmp_path, ('dev = [{ name = "py', 'dev = [{ name = "mine" }, { name = "py'))
    assert [source.url for source in read(named, groups=["dev"]).sources] == ["."]
    assert not read(project(tmp_path, ('editable = "."', 'virtual = "."'))).sources


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 1\n", "version = 2\n", "uv cannot read this lock"),
        ('name = "rich"\nversion', 'nam = "rich"\nversion', "uv cannot read this lock"),
        ("cp311-cp311-linux_x86_64", "cp311-cp311-win_amd64", "torch 2.5.1+cpu: no wheel for linux-64"),
    ],
)
def test_damage(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(LockError) as caught:
        read(project(tmp_path, (old, new)))
    assert said in caught.value.message and caught.value.hint
    assert caught.value.message.startswith(str(tmp_path / "uv.lock"))


def test_wheel_of_the_project(tmp_path: Path) -> None:
    path = project(
        tmp_path,
        (
            f'{{ git = "https://github.com/o/mike.git?rev=main#{COMMIT}" }}',
            '{ path = "wh/mike-2.2.0-py3-none-any.whl" }\n'
            f'wheels = [{{ filename = "mike-2.2.0-py3-none-any.whl", hash = "sha256:{C}" }}]',
        ),
    )
    (tmp_path / "wh").mkdir()
    (tmp_path / "wh" / "mike-2.2.0-py3-none-any.whl").touch()
    lock = read(path, groups=["main", "docs"])
    (mike,) = [package for package in lock.packages if package.name == "mike"]
    assert mike.url == "builder://find-links/wh/mike-2.2.0-py3-none-any.whl" and mike.sha256 == C


def test_other_environments(tmp_path: Path) -> None:
    """uv does not install from a lock whose ``environments`` leave out the target."""
    markers = 'supported-markers = ["sys_platform == \'darwin\'"]\n\n[[package]]\nname = "mike"'
    with pytest.raises(LockError, match="supported-markers: only sys_platform == 'darwin'") as caught:
        read(project(tmp_path, ('[[package]]\nname = "mike"', markers)))
    assert "'environments' of [tool.uv]" in caught.value.hint


#: Keys of a lock before the first package, of one package, and of one file.
OLD_RICH = 'name = "rich", specifier = "<1"'
OTHER_KEYS = {
    "[[package]]": [
        "required-markers = [\"sys_platform == 'win32'\"]",
        'conflicts = [[{ package = "mine", extra = "plot" }, { package = "mine", group = "dev" }]]',
        '[options]\nprerelease-mode = "allow"\nexclude-newer = "2001-01-01T00:00:00Z"',
        f'[manifest]\nmembers = ["mine"]\nconstraints = [{{ {OLD_RICH} }}]\noverrides = [{{ {OLD_RICH} }}]',
    ],
    'version = "13.9.4"\n': ["resolution-markers = [\"os_name == 'nt'\"]"],
    "[package.optional-dependencies]\n": [f"[package.metadata]\nrequires-dist = [{{ {OLD_RICH} }}]"],
    f'hash = "sha256:{B}" }}': ['size = 1, upload-time = "2001-01-01T00:00:00Z", '],
}


@pytest.mark.parametrize(("before", "key"), [(old, key) for old in OTHER_KEYS for key in OTHER_KEYS[old]])
def test_other_keys(tmp_path: Path, before: str, key: str) -> None:
    """uv reads every key; those that it does not obey here cannot change what the lock pins."""
    end = "" if key.endswith(" ") else "\n"
    path = project(tmp_path)
    path.write_text(LOCK.replace(before, f"{key}{end}{before}", 1))
    assert names(read(path)) == ["rich 13.9.4", "torch 2.5.1+cpu"]
