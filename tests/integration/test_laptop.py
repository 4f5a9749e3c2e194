"""The packages of a lock without a container: the lines of docs/locking.md, and what they install."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import uv

from builder.core.model import Lock
from builder.lock.file import read_lock
from tests.integration.conftest import CLONE, Builder, keep_base
from tests.support.channel import serve
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel
from tests.support.micromamba_stub import write_stub
from tests.support.programs import run_program

pytestmark = [pytest.mark.network, pytest.mark.heavy]
#: A conda package, a wheel of an index, and a source package whose wheel builder makes.
ENVIRONMENT = """\
dependencies: [python=3.11, pip, {pip: [six==1.16.0, ./tool]}]
"""
TOOL = """\
[project]
name = "tool"
version = "1.0"
[tool.setuptools]
py-modules = ["tool"]
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""
Installed = set[tuple[str, str, str]]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory, base_cache: Path) -> Path:
    """A project that is locked, in which the page's lines ran. conda-lock and uv are real; in micromamba's
    place is a stand-in that installs with rattler.
    """
    folder = tmp_path_factory.mktemp("laptop")
    root = folder / "mine"
    (root / "tool").mkdir(parents=True)
    (root / "tool/pyproject.toml").write_text(TOOL)
    (root / "tool/tool.py").write_text("")
    (root / "environment.yml").write_text(ENVIRONMENT)
    (root / "recipes").mkdir()
    with serve(make_debian_channel(CHANNEL_FOLDER)) as channel:
        keys = f"environment: environment.yml\nconda: {{channels: ['{channel.url}']}}\n"
        (root / "recipes/mine.yaml").write_text(f"base: debian:bookworm\n{keys}")
        Builder(root, keep_base(base_cache, folder / "cache")).run("lock", "mine")
        run_program(["sh", CLONE / "tests/integration/laptop.sh"], programs(root / "bin"), cwd=root)
    return root


def programs(folder: Path) -> dict[str, str]:
    """The variables for conda-lock, uv and micromamba in a folder."""
    folder.mkdir()
    (folder / "uv").symlink_to(uv.find_uv_bin())  # python -m uv would change the environment of the tests
    (folder / "conda-lock").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m conda_lock "$@"\n')
    (folder / "conda-lock").chmod(0o755)
    write_stub(folder)
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    path = f"{folder}:{env['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(CLONE), "MAMBA_ROOT_PREFIX": str(folder.parent / "root")}
    return {**env, **own, "UV_PYTHON_DOWNLOADS": "never"}


def test_conda(laptop: Path) -> None:
    """The environment has the lock's packages: names, versions and hashes, also of the wheel from source."""
    lock, prefix = read_lock(laptop / "environment.mine.lock.yml"), laptop / "root/envs/mine"
    assert conda_packages(prefix) == keys_of(lock, "conda")
    assert wheels_in(prefix) == keys_of(lock, "pip")
    assert {name for name, _, _ in keys_of(lock, "pip")} == {"six", "tool"}


def test_uv(laptop: Path) -> None:
    """uv installs the same wheels, and none whose hash is another."""
    lock, file = read_lock(laptop / "environment.mine.lock.yml"), laptop / "mine.txt"
    installed = {name: version for name, version, _ in wheels_in(laptop / "mine-env")}
    assert installed == {name: version for name, version, _ in keys_of(lock, "pip")}
    for _, _, sha256 in keys_of(lock, "pip"):
        other = laptop / "other.txt"
        other.write_text(file.read_text().replace(sha256, "0" * 64))
        command = [uv.find_uv_bin(), "pip", "sync", "--python", "mine-env", "--reinstall", "other.txt"]
        done = run_program(command, os.environ, check=False, cwd=laptop)
        assert done.returncode and "Hash mismatch" in done.stderr and sha256 in done.stderr


def keys_of(lock: Lock, manager: str) -> Installed:
    found = [package for package in lock.packages if package.manager == manager]
    return {(package.name, package.version, package.sha256 or "") for package in found}


def conda_packages(prefix: Path) -> Installed:
    found = [json.loads(path.read_text()) for path in (prefix / "conda-meta").glob("*.json")]
    return {(package["name"], package["version"], package["sha256"]) for package in found}


def wheels_in(prefix: Path) -> Installed:
    """The packages that pip or uv installed, with the hash that pip verified and recorded."""
    found = distributions(path=[str(prefix / "lib/python3.11/site-packages")])
    origins = [(one, one.read_text("direct_url.json")) for one in found]
    return {(one.name, one.version, recorded_hash(origin)) for one, origin in origins if origin}


def recorded_hash(origin: str) -> str:
    return str(json.loads(origin)["archive_info"].get("hashes", {}).get("sha256", ""))
