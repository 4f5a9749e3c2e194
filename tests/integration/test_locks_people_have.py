"""Locks and project files of other tools, each locked and built; images of uv and pixi are run.

The locks are made by uv from the package index of this machine. Python is that of the Debian channel, served
on loopback. conda-lock solves with a stand-in for micromamba (tests/support/micromamba_stub.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
import yaml

from builder.core.model import LockedPackage
from builder.lock.file import read_lock
from tests.integration.conftest import Builder, keep_base
from tests.support.channel import index_channel, serve
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel
from tests.support.micromamba_stub import write_stub

PYPROJECT = """\
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["jinja2==3.1.6"]
[dependency-groups]
dev = ["six==1.16.0"]
"""
RECIPES = {
    "uv": "lock: uv.lock",
    "dev": "lock: uv.lock\ngroups: [main, dev]",
    "pylock": "lock: pylock.toml",
    "hashes": "lock: requirements.txt",
    "pixi": "lock: pixi.lock\nlock_environment: prod",
    "explicit": "lock: conda-linux-64.txt",
    "project": "environment: pyproject.toml\ngroups: [main, dev]",
    "conda": "environment: environment.yml",
}


@pytest.fixture(scope="module")
def project(module_folder: Path, base_cache: Path) -> Iterator[Builder]:
    folder = module_folder
    cache = keep_base(base_cache, folder / "cache")
    debian = make_debian_channel(CHANNEL_FOLDER)
    channel, root = folder / "channel", folder / "project"
    for subdir in ("linux-64", "noarch"):
        without_index = shutil.ignore_patterns("repodata*", "shards")
        shutil.copytree(debian / subdir, channel / subdir, ignore=without_index)
    index_channel(channel)
    (root / "recipes").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    run_uv(root, "lock")
    run_uv(root, "export", "--format", "pylock.toml", "--no-dev", "-o", "pylock.toml")
    run_uv(root, "export", "--format", "requirements.txt", "--no-dev", "-o", "requirements.txt")
    with serve(channel) as server:
        for name, keys in RECIPES.items():
            channels = f"conda: {{channels: ['{server.url}']}}"
            (root / f"recipes/{name}.yaml").write_text(
                f"base: debian:bookworm\nbytecode: none\n{channels}\n{keys}\n"
            )
        yield Builder(root, cache)


def run_uv(folder: Path, *words: str) -> None:
    command = [uv.find_uv_bin(), *words, "--quiet", "--no-python-downloads"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def packages(project: Builder, file: str) -> dict[str, LockedPackage]:
    return {package.name: package for package in read_lock(project.root / file).packages}


def keys(found: dict[str, LockedPackage]) -> dict[str, str]:
    """The hashes of packages: not each format has their dependencies."""
    return {name: package.key for name, package in found.items()}


@pytest.fixture(scope="module")
def uv_packages(project: Builder) -> dict[str, LockedPackage]:
    """What builder locks for ``uv.lock``."""
    project.run("lock", "uv")
    return packages(project, "uv.uv.lock.yml")


def test_uv(project: Builder, uv_packages: dict[str, LockedPackage]) -> None:
    """The image has the packages of uv.lock, and a Python from the channel."""
    wheels = {name for name, package in uv_packages.items() if package.manager == "pip"}
    assert wheels == {"jinja2", "markupsafe"}
    done = project.run("build", "uv")
    assert "left out: dev" in done.stderr
    code = "import jinja2, sys; print(jinja2.__version__, sys.version_info.minor)"
    assert project.run("run", "uv", "--", "python", "-c", code).stdout == "3.1.6 11\n"


@pytest.mark.parametrize(("name", "file"), [("pylock", "pylock.pylock"), ("hashes", "requirements.hashes")])
def test_exports(project: Builder, uv_packages: dict[str, LockedPackage], name: str, file: str) -> None:
    """What uv exports has the same wheels."""
    project.run("build", name)
    assert keys(packages(project, f"{file}.lock.yml")) == keys(uv_packages)


def test_groups(project: Builder, uv_packages: dict[str, LockedPackage]) -> None:
    project.run("lock", "dev")
    found = packages(project, "uv.dev.lock.yml")
    assert found.keys() - uv_packages.keys() == {"six"}
    (project.root / "uv.lock").write_text((project.root / "uv.lock").read_text() + "\n")
    done = project.run("lock", "dev", "--check", check=False)
    assert (done.returncode, "stale: uv.lock changed" in done.stdout) == (4, True)


def test_project_file(project: Builder, uv_packages: dict[str, LockedPackage]) -> None:
    """pyproject.toml as the environment file: builder solves what it requires."""
    project.run("build", "project")
    found = packages(project, "pyproject.project.lock.yml")
    assert found["jinja2"].key == uv_packages["jinja2"].key
    assert {"six", "python", "pip"} <= found.keys()


def test_pixi(project: Builder, uv_packages: dict[str, LockedPackage]) -> None:
    """A lock with conda packages and wheels is taken as it is."""
    listed = [pixi_package(package) for package in uv_packages.values()]
    names = [{key: entry[key] for key in ("conda", "pypi") if key in entry} for entry in listed]
    environment = {"channels": [{"url": "https://conda.example/c"}], "packages": {"linux-64": names}}
    lock = {"version": 6, "environments": {"prod": environment}, "packages": listed}
    (project.root / "pixi.lock").write_text(yaml.safe_dump(lock, sort_keys=False))
    project.run("build", "pixi")
    found = packages(project, "pixi.pixi.lock.yml")
    assert keys(found) == keys(uv_packages)
    code = "import jinja2; print(jinja2.__version__)"
    assert project.run("run", "pixi", "--", "python", "-c", code).stdout == "3.1.6\n"


def pixi_package(package: LockedPackage) -> dict[str, object]:
    if package.manager == "pip":
        entry = {"pypi": package.url, "name": package.name, "version": package.version}
        return {**entry, "sha256": package.sha256}
    depends = [f"{name} {spec}".strip() for name, spec in package.dependencies.items()]
    return {"conda": package.url, "sha256": package.sha256, "md5": package.md5, "depends": depends}


def test_explicit(project: Builder, uv_packages: dict[str, LockedPackage]) -> None:
    conda = [package for package in uv_packages.values() if package.manager == "conda"]
    lines = ["@EXPLICIT", *(f"{package.url}#{package.md5}" for package in conda)]
    (project.root / "conda-linux-64.txt").write_text("\n".join(lines) + "\n")
    project.run("build", "explicit")
    assert packages(project, "conda-linux-64.explicit.lock.yml").keys() == {p.name for p in conda}


def test_conda_lock_solves(project: Builder, uv_packages: dict[str, LockedPackage], tmp_path: Path) -> None:
    """conda-lock finds the same packages as rattler."""
    (project.root / "environment.yml").write_text("dependencies: [python=3.11]\n")
    write_stub(tmp_path)
    path = f"{tmp_path}:{os.environ['PATH']}"
    project.run("lock", "conda", "--solver", "conda-lock", env={"PATH": path})
    found = packages(project, "environment.conda.lock.yml")
    assert keys(found) == keys({name: p for name, p in uv_packages.items() if p.manager == "conda"})
    assert "stale" not in project.run("lock", "conda", "--check").stdout
    (project.root / "environment.yml").write_text("dependencies: [python=3.11, nothing]\n")
    done = project.run("lock", "conda", "--solver", "conda-lock", env={"PATH": path}, check=False)
    assert (done.returncode, "nothing" in done.stderr) == (5, True)
    assert "Traceback" not in done.stderr
