"""Versions from tags of git: builder's wheels have the versions of pip's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uv
from packaging.utils import parse_wheel_filename

from builder.build.sources import SourceTree, open_source
from builder.build.sources.scm import write_archival
from builder.build.wheels.backend import read_backend
from builder.build.wheels.builder import ImageWheelBuilder
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe
from builder.lock.file import read_lock
from builder.lock.inputs import Inputs
from builder.lock.spec import SourceSpec
from tests.integration.conftest import Builder, keep_base
from tests.support.gitserver import GitServer, Repo

pytestmark = pytest.mark.network

TOOLS = ("setuptools", "setuptools-scm", "hatchling", "hatch-vcs")
SETUPTOOLS = """
[build-system]
requires = ["setuptools", "setuptools-scm"]
build-backend = "setuptools.build_meta"
[project]
name = "tool"
dynamic = ["version"]
[tool.setuptools]
py-modules = []
[tool.setuptools_scm]
"""
HATCH = """
[build-system]
requires = ["hatchling", "hatch-vcs"]
build-backend = "hatchling.build"
[project]
name = "tool"
dynamic = ["version"]
[tool.hatch.build.targets.wheel]
bypass-selection = true
[tool.hatch.version]
source = "vcs"
"""
COMMAND = """
git_describe_command = "git describe --dirty --tags --long --match tool_*"
tag_regex = '^tool_(.*)$'
"""
SCHEMES = """
root = "../.."
local_scheme = "no-local-version"
version_scheme = "post-release"
"""
LEGACY = "from setuptools import setup\nsetup(name='tool', use_scm_version=True, py_modules=[])\n"
RECIPE = """
base: debian:bookworm
bytecode: none
environment: environments/t.yml
pip: {fallback: pip}
"""
LOCK = "environments/t.t.lock.yml"
METADATA = """
import importlib, sys
backend = importlib.import_module(sys.argv[1])
print(backend.prepare_metadata_for_build_wheel(sys.argv[2]).split("-")[1].removesuffix(".dist"))
"""


@dataclass(frozen=True)
class Shape:
    """A repository that makes its version from tags."""

    file: str
    text: str
    tag: str = "v1.2.0"
    """Of the first state; empty: the repository has no tag."""

    @property
    def folder(self) -> str:
        return self.file.rpartition("/")[0]


SHAPES = {
    "setup.py": Shape("setup.py", LEGACY),
    "subfolder": Shape("py/tool/pyproject.toml", SETUPTOOLS + SCHEMES),
    "hatch": Shape("pyproject.toml", HATCH),
    "command": Shape("pyproject.toml", SETUPTOOLS + COMMAND, "tool_1.2"),
    "untagged": Shape("pyproject.toml", SETUPTOOLS, ""),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with pip and the tools: all builds share it."""
    folder = tmp_path_factory.mktemp("tools") / "venv"
    for words in (("venv", "--seed", folder), ("pip", "install", "--python", folder, *TOOLS)):
        subprocess.run([uv.find_uv_bin(), *words, "--quiet"], check=True)
    return folder / "bin/python"


def pip_version(python: Path, source: str, out: Path) -> str:
    """Return the version of the wheel that ``pip wheel`` builds."""
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([python, "-m", "pip", "wheel", *options, source], check=True, capture_output=True)
    return str(parse_wheel_filename(next(out.glob("*.whl")).name)[1])


def built_version(python: Path, folder: Path) -> str:
    """Return the version that the build backend of a source without history finds."""
    backend = read_backend(folder, "tool").name.partition(":")[0]
    out = folder / "metadata"
    out.mkdir()
    done = subprocess.run([python, "-c", METADATA, backend, out], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def wheel_builder(root: Path) -> ImageWheelBuilder:
    """Return the builder of a project at a folder, with a cache beside it."""
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "platform": "linux-64"}
    recipe = Recipe.model_validate({**values, "root": root, "source": root / "t.yaml"})
    settings = Settings.from_environment({"HOME": str(root.parent)}, cache=root.parent / "cache")
    return ImageWheelBuilder(Inputs.read(recipe), Workspace(settings, Store(settings.cache)))


def opened(spec: SourceSpec, repo: Repo, copy: Path) -> SourceTree:
    """Return a source as it is built, in a folder that stays."""
    builder = wheel_builder(repo.folder)
    with open_source(spec, repo.folder, builder.work) as tree:
        tree = builder._with_description(spec, "tool", tree)
        write_archival(tree)
        shutil.copytree(tree.root, copy)
    return replace(tree, path=copy / spec.subdirectory)


def states(repo: Repo, tag: str) -> Iterator[str]:
    """Yield the commit with a tag, then one between tags."""
    commit = repo.git("rev-parse", "HEAD")
    if tag:
        repo.git("tag", "--annotate", "--message", "x", tag)
        repo.git("tag", "nightly")
    yield commit
    repo.git("commit", "--quiet", "--allow-empty", "--message", "change")
    yield repo.commit(more_txt="1")


@pytest.mark.parametrize("name", SHAPES)
def test_same_version(name: str, python: Path, tmp_path: Path) -> None:
    """At a tag and between tags, of a repository and of the project itself."""
    shape, repo = SHAPES[name], Repo(tmp_path / "project")
    repo.commit(first_txt="1")
    repo.write(shape.file, shape.text)
    repo.commit()
    for commit in states(repo, shape.tag):
        git = SourceSpec("git", "tool", repo.url, commit, shape.folder, where="e.yml:1")
        local = SourceSpec("local", "tool", ".", subdirectory=shape.folder, where="e.yml:1")
        tree = opened(git, repo, tmp_path / commit)
        assert opened(local, repo, tmp_path / f"local{commit}").locked.describe == tree.locked.describe
        url = f"git+{repo.url}@{commit}#subdirectory={shape.folder}"
        assert built_version(python, tree.path) == pip_version(python, url, tmp_path / f"out{commit}")


def project(repo: Repo, requirement: str) -> None:
    """Make a project whose own package and a requirement have versions from git."""
    repo.write("pyproject.toml", SETUPTOOLS.replace('"tool"', '"mine"'))
    repo.write("recipes/t.yaml", RECIPE)
    pip = f"[.., '{requirement}']"
    repo.write("environments/t.yml", f"channels: [conda-forge]\ndependencies: [python=3.11, pip: {pip}]\n")
    repo.write(".gitignore", "wheels/\ndist/\n")
    repo.commit()
    repo.git("tag", "v2.0")
    repo.commit(more_txt="1")


def built_versions(lock: Path) -> dict[str, str]:
    """Return the versions of the wheels that were built for a lock."""
    return {package.name: package.version for package in read_lock(lock).packages if package.source}


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[tuple[Repo, str]]:
    """A repository with a tag, and its URL on a server."""
    tool = Repo(tmp_path / "served/tool")
    tool.commit(pyproject_toml=HATCH)
    tool.git("tag", "v1.2.0")
    server = GitServer(tool.folder.parent)
    yield tool, f"git+{server.url}/tool@v1.2.0"
    server.close()


def test_image(tmp_path: Path, base_cache: Path, tool: tuple[Repo, str]) -> None:
    """The lock has what git described: new commits and tags do not make it stale, nor other wheels."""
    repo = Repo(tmp_path / "one")
    project(repo, f"tool @ {tool[1]}")
    one = Builder(repo.folder, keep_base(base_cache, tmp_path / "cache"))
    one.run("lock", "t")
    mine = f"2.1.dev1+g{repo.git('rev-parse', 'HEAD')[:9]}"
    assert built_versions(repo.folder / LOCK) == {"tool": "1.2.0", "mine": mine}

    repo.commit()  # the lock
    for changed in (repo, tool[0]):
        changed.git("tag", "--annotate", "--message", "x", "v9.0")
    one.run("lock", "--check", "t")
    two = Builder(repo.folder, keep_base(base_cache, tmp_path / "cache2"))
    shutil.rmtree(repo.folder / "wheels")
    assert two.run("build", "t").stderr.count("building it from its source") == 2
    one.run("lock", "t")
    assert built_versions(repo.folder / LOCK) == {"tool": "9.0", "mine": "9.0"}
