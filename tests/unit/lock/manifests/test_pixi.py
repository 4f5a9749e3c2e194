"""Environments of pixi projects: what pixi 0.77 makes of the same file."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.manifests import read_manifest
from builder.lock.spec import Environment, IndexPin

PIXI = """\
[workspace]
channels = ["bioconda", {channel = "conda-forge", priority = 1}]
platforms = ["linux-64"]
[dependencies]
python = ">=3.11, <3.13"
numpy = {version = "2.*", build = "py*", channel = "conda-forge"}
[target.linux-64.dependencies]
mpich = "*"
[target.osx-64.dependencies]
llvm = {path = "llvm"}
[pypi-dependencies]
flask = {version = ">=3", extras = ["async"]}
[feature.test]
channels = ["tests"]
[feature.test.pypi-dependencies]
pytest = "*"
[feature.unused.dependencies]
own = {path = "own"}
[environments]
test = ["test"]
bare = {features = ["test"], no-default-feature = true}
"""
WORKSPACE = "[workspace]\nchannels = ['c']\nplatforms = ['linux-64']\n"
PROJECT = """\
[project]
name = "mine"
requires-python = ">=3.10"
dependencies = ["flask"]
[dependency-groups]
my_group = ["pytest"]
[tool.pixi.workspace]
channels = ["c"]
platforms = ["linux-64"]
[tool.pixi.environments]
test = ["my_group"]
alone = {features = ["my_group"], no-default-feature = true}
"""


def read(folder: Path, text: str, environment: str | None = None, name: str = "pixi.toml") -> Environment:
    (folder / name).write_text(text)
    return read_manifest(folder / name, "linux-64", environment=environment)


def texts(specs) -> list[str]:
    return [spec.text for spec in specs]


def test_default(tmp_path: Path) -> None:
    """Tables of other platforms and of features that the environment does not have do not count."""
    found = read(tmp_path, PIXI)
    assert found.channels == ("conda-forge", "bioconda")
    assert texts(found.conda) == ["python >=3.11,<3.13", "conda-forge::numpy 2.* py*", "mpich", "pip"]
    assert texts(found.pip) == ["flask[async]>=3"]


def test_environments(tmp_path: Path) -> None:
    """The named features are first; one without channels has those of the workspace."""
    found = read(tmp_path, PIXI, "test")
    assert texts(found.pip) == ["pytest", "flask[async]>=3"]
    assert found.channels == ("conda-forge", "tests", "bioconda")
    bare = read(tmp_path, PIXI, "bare")
    assert (texts(bare.pip), texts(bare.conda)) == (["pytest"], ["python", "pip"])
    assert bare.channels == ("tests",)
    with pytest.raises(ConfigError, match="no environment 'tset'") as error:
        read(tmp_path, PIXI, "tset")
    assert "did you mean test?" in error.value.hint


def test_unknown_feature(tmp_path: Path) -> None:
    text = f"{PIXI}typo = ['tset']\n"
    with pytest.raises(ConfigError, match="no feature 'tset'") as error:
        read(tmp_path, text, "typo")
    assert "did you mean test?" in error.value.hint


def test_inline_environment(tmp_path: Path) -> None:
    """An environment may have tables of its own, without a feature."""
    text = f"{WORKSPACE}[environments.dev]\ndependencies = {{git = '*'}}\nchannels = ['own']\n"
    assert texts(read(tmp_path, text, "dev").conda) == ["git", "python", "pip"]
    assert read(tmp_path, text, "dev").channels == ("own", "c")
    assert texts(read(tmp_path, text).conda) == ["python", "pip"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[target.linux.dependencies]\nlib = '2'", ["lib 2"]),
        ("[target.linux-64.dependencies]\nlib = '2'\n[target.unix.dependencies]\nlib = '3'", ["lib 3"]),
        ("[target.win-64.dependencies]\nlib = '2'\n[target.osx.dependencies]\nlib = '3'", ["lib 1"]),
        ("[build-dependencies]\nlib = '2'\n[host-dependencies]\nmore = '3'", ["lib 2", "more 3"]),
        ("[environments.default.dependencies]\nlib = '<2'", ["lib <2", "lib 1"]),
    ],
    ids=["target", "the later target", "other platforms", "build and host", "two features"],
)
def test_same_name(tmp_path: Path, text: str, expected: list[str]) -> None:
    """Within a feature the later entry replaces the earlier one, those of several features all count."""
    found = read(tmp_path, f"{WORKSPACE}[dependencies]\nlib = '1'\n{text}\n")
    assert texts(found.conda) == [*expected, "python", "pip"]


def test_pypi(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        f"{WORKSPACE}[pypi-dependencies]\n"
        "torch = {version = '*', index = 'https://i.example/cpu/', env-markers = \"python_version > '3'\"}\n"
        "tool = {git = 'https://h.example/tool', rev = 'v1', subdirectory = 'py', extras = ['a']}\n"
        "wheel = {url = 'https://h.example/a.tar.gz'}\n",
    )
    assert texts(found.pip) == ["torch ; python_version > '3'"]
    assert found.pins == (IndexPin("torch", "https://i.example/cpu", "python_version > '3'"),)
    git, archive = found.sources
    assert (git.kind, git.url, git.revision, git.subdirectory) == (
        "git",
        "https://h.example/tool",
        "v1",
        "py",
    )
    assert (archive.kind, archive.url, git.extras) == ("archive", "https://h.example/a.tar.gz", ("a",))
    assert found.uv == {}


def test_pypi_options(tmp_path: Path) -> None:
    """Options of a feature replace those of the workspace; lists have the values of both."""
    found = read(
        tmp_path,
        f"{WORKSPACE}[workspace.pypi-options]\nindex-url = 'https://w.example'\nno-build = true\n"
        "extra-index-urls = ['https://e.example']\nprerelease-mode = 'allow'\n"
        "[pypi-options]\nindex-url = 'https://f.example'\nextra-index-urls = ['https://g.example']\n"
        "index-strategy = 'unsafe-best-match'\nno-binary = ['Some_Tool']\n"
        "find-links = [{path = 'wheels'}, {url = 'https://l.example'}]\n"
        "[pypi-options.dependency-overrides]\ndep = '==2.0'\nother = {version = '>=1', extras = ['x']}\n"
        "[pypi-exclude-newer]\ndep = '0d'\n",
    )
    assert (found.index_url, found.find_links) == ("https://f.example", ("wheels", "https://l.example"))
    assert found.extra_index_urls == ("https://e.example", "https://g.example")
    assert (found.no_binary, found.only_binary) == (("some-tool",), (":all:",))
    assert found.uv == {
        "index-strategy": "unsafe-best-match",
        "prerelease": "allow",
        "override-dependencies": ["dep==2.0", "other[x]>=1"],
        "exclude-newer-package": {"dep": "0d"},
    }


def test_links_alone(tmp_path: Path) -> None:
    """pixi asks no index if there are links and no index: to_index_locations in pixi_uv_conversions."""
    text = f"{WORKSPACE}[pypi-options]\nfind-links = [{{path = 'wheels'}}]\n"
    assert read(tmp_path, text).uv == {"no-index": True}


def test_settings(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "[workspace]\nchannels = ['c']\nplatforms = ['linux-64']\nexclude-newer = '2025-01-01'\n"
        "[constraints]\nssl = '<4'\n[target.linux.constraints]\nssl = '<3.5'\n"
        "[activation.env]\nA = '1'\nB = '1'\n[target.linux.activation.env]\nB = '2'\n"
        "[environments.default.activation]\nenv = {A = '0'}\n",
    )
    assert texts(found.limits) == ["ssl <3.5"]
    assert found.exclude_newer == "2025-01-01"
    assert dict(found.variables) == {"A": "0", "B": "2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("platforms = [{platform = 'linux-64', cuda = '12.0', glibc = '2.31'}]", "__cuda=12.0 __glibc=2.31"),
        (
            "platforms = [{platform = 'linux-64', cuda = {driver = '12', arch = '8.6'}}]",
            "__cuda=12 __cuda_arch=8.6",
        ),
        ("platforms = [{name = 'linux-64', __cuda = '12'}, 'win-64']", "__cuda=12"),
        (
            "platforms = ['linux-64', 'osx-64']\n[system-requirements]\ncuda = '12'\nlibc = '2.9'\n"
            "[environments.default]\nfeatures = ['new']\n"
            "[feature.new.system-requirements]\nlinux = '5.4'\nlibc = {family = 'glibc', version = '2.17'}",
            "__cuda=12 __glibc=2.17 __linux=5.4",
        ),
        (
            "platforms = ['linux-64', {name = 'gpu', platform = 'linux-64', cuda = '12'}]\n"
            "[environments.default]\nplatforms = ['gpu']\n[target.'g*'.constraints]\na = '1'",
            "__cuda=12",
        ),
        (
            "platforms = ['linux-64', {name = 'gpu', platform = 'linux-64', cuda = '12'}]\n"
            "[environments.default]\nplatforms = ['linux-64']\n[target.gpu.dependencies]\na = {path = '.'}",
            "",
        ),
    ],
    ids=["platform", "driver and arch", "raw names", "highest version", "named platform", "bare platform"],
)
def test_virtual_packages(tmp_path: Path, text: str, expected: str) -> None:
    found = read(tmp_path, f"[workspace]\nchannels = ['c']\n{text}\n")
    assert " ".join(f"{name}={value}" for name, value in sorted(found.virtual_packages.items())) == expected


def test_in_pyproject(tmp_path: Path) -> None:
    """The project's own dependencies are of the default feature, and a group is the feature of its name."""
    (tmp_path / ".python-version").write_text("3.12\n")
    found = read(tmp_path, PROJECT, "test", "pyproject.toml")
    assert texts(found.conda) == ["python >=3.10", "pip"]
    assert texts(found.pip) == ["flask", "pytest"]
    alone = read(tmp_path, PROJECT, "alone", "pyproject.toml")
    assert (texts(alone.conda), texts(alone.pip)) == (["python", "pip"], ["pytest"])
    pixi = f"{PROJECT}[tool.pixi.dependencies]\npython = '3.13.*'\n"
    assert texts(read(tmp_path, pixi, None, "pyproject.toml").conda) == ["python 3.13.*", "pip"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[dependencies]\nmine = {path = 'mine'}", ":5: dependencies.mine.path", "builds no conda packages"),
        ("[dependencies]\nmine = {workspace = true}", "dependencies.mine.workspace", "write the version"),
        ("[dependencies]\nmine = {version = '1', md5 = 'a'}", "dependencies.mine.md5", "lock: pixi.lock"),
        ("[target.linux.dev]\nmine = {path = '.'}", ":4: target.linux.dev", "name the packages"),
        ("[activation]\nscripts = ['a.sh']", ":5: activation.scripts", "lock: pixi.lock"),
        ("[pypi-options]\nno-build-isolation = ['a']", "pypi-options.no-build-isolation", "lock: pixi.lock"),
        ("[environments]\ndefault = {solve-group = 'g'}", "environments.default.solve-group", "pixi lock"),
        (
            "[feature.f]\nchannel-priority = 'disabled'\n[environments]\ndefault = ['f']",
            "channel-priority",
            "",
        ),
        (
            "[exclude-newer]\na = '0d'\n[environments]\ndefault = {features = [], no-default-feature = true}",
            ":4: exclude-newer",
            "lock: pixi.lock",
        ),
        ("[new-table]\na = 1", ":4: new-table", "lock: pixi.lock"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    """What builder does not follow is an error with file, line and key."""
    with pytest.raises(ConfigError) as error:
        read(tmp_path, f"{WORKSPACE}{text}\n")
    assert str(tmp_path / "pixi.toml:") in error.value.message
    assert f"{message}: builder does not support this key" in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "platforms",
    [
        "[]",
        "['osx-arm64']",
        "['linux-64', {platform = 'linux-64', cuda = '12'}]",
        "['linux-64']\n[environments.default]\nplatforms = ['win-64']",
    ],
)
def test_platforms(tmp_path: Path, platforms: str) -> None:
    """A workspace without the platform is not locked for it, nor one that leaves open which entry counts."""
    with pytest.raises(ConfigError, match=r":3: platforms: ") as error:
        read(tmp_path, f"[workspace]\nchannels = ['c']\nplatforms = {platforms}\n")
    assert "list it once" in error.value.hint and "pixi lock" in error.value.hint


@pytest.mark.parametrize("value", ["1", "true", "1.5", "'x'", "[]", "[[1]]", "{}", "{a = 1}"])
@pytest.mark.parametrize(
    "key",
    [
        "dependencies",
        "dependencies.a",
        "target.linux",
        "pypi-dependencies.a",
        "pypi-options.find-links",
        "system-requirements.cuda",
        "feature.f",
        "feature.f.channels",
        "feature.f.platforms",
        "environments.default.channels",
        "activation.env",
    ],
)
def test_wrong_types(tmp_path: Path, key: str, value: str) -> None:
    """A value of a wrong type is ignored or an error of builder's."""
    lines = f"[workspace]\nchannels = [{{channel = 'c', priority = {value}}}]\n[environments.default]\n"
    with contextlib.suppress(ConfigError):
        read(tmp_path, f"{key} = {value}\n{lines}features = ['f']\n")


def test_build_over_host_over_run(tmp_path: Path) -> None:
    """In whatever order the tables stand: combined_dependencies in target.rs of pixi 0.77."""
    tables = ("build-dependencies", "host-dependencies", "dependencies")
    text = "".join(f"[{name}]\na = '{number}.*'\n" for number, name in enumerate(tables))
    assert texts(read(tmp_path, WORKSPACE + text).conda)[0] == "a 0.*"


@pytest.mark.parametrize("text", ["[package.run-dependencies]\nnumpy = '*'\n", ""])
def test_no_workspace(tmp_path: Path, text: str) -> None:
    """A package of a workspace in another folder is no environment."""
    with pytest.raises(ConfigError, match=r"pixi\.toml: no table \[workspace\]"):
        read(tmp_path, text)


def test_not_a_requirement(tmp_path: Path) -> None:
    """A version without an operator does not become part of the name."""
    with pytest.raises(ConfigError, match=r"'tool 1\.0' is not a pip requirement"):
        read(tmp_path, f"{WORKSPACE}[pypi-dependencies]\ntool = '1.0'\n")
