"""Source packages in real images: built by the user-namespace runner, locked, built again, imported."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import uv

from builder.lock.file import read_lock
from tests.integration.conftest import Builder, keep_base

BACKEND = """
import os, zipfile
def build_wheel(out, config_settings=None, metadata_directory=None):
    name = "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(out, name), "w") as wheel:
        def add(path, text):
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
        add("mine.py", "VALUE = %r\\n" % os.environ.get("VALUE"))
        add("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1.0\\n")
        add("mine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\nRoot-Is-Purelib: true\\n")
        add("mine-1.0.dist-info/RECORD", "")
    open("/etc/outside", "w").close()
    try:
        import socket
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError as e:
        print("network:", e)
    else:
        raise SystemExit("the build has a network")
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "mine"
version = "1.0"
"""
RECIPE = """
base: debian:bookworm
bytecode: none
environment: environments/t.yml
pip:
  fallback: pip
  build:
    mine: {env: {VALUE: "42"}}
"""


def project(folder: Path, *requirements: str) -> Path:
    """A project whose package builds itself: its build needs nothing."""
    for name in ("recipes", "environments"):
        (folder / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "recipes" / "t.yaml").write_text(RECIPE)
    lines = "".join(f"    - {requirement}\n" for requirement in requirements)
    (folder / "environments" / "t.yml").write_text(
        f"channels: [conda-forge]\ndependencies:\n- python=3.11\n- pip:\n{lines}"
    )
    return folder


def test_own_package(tmp_path: Path, base_cache: Path) -> None:
    """Built once; another machine uses the project's wheel, or builds the same one again."""
    one = Builder(project(tmp_path / "one", "-e .."), keep_base(base_cache, tmp_path / "cache"))
    assert "mine-1.0-py3-none-any.whl: built from ." in one.run("lock", "t").stderr
    digest = one.json("build", "t")["digest"]
    shown = one.run("run", "t", "--", "python", "-c", "import mine; print(mine.VALUE)")
    assert shown.stdout.strip() == "42"
    assert "built from" not in one.run("lock", "t").stderr

    (one.root / "dist").rename(tmp_path / "dist")
    two = Builder(tmp_path / "two", keep_base(base_cache, tmp_path / "cache2"))
    shutil.copytree(one.root, two.root)
    assert two.json("build", "t")["digest"] == digest
    assert "built from" not in two.run("lock", "t").stderr, "its wheel is in the project"

    shutil.rmtree(two.root / "wheels")
    three = Builder(two.root, keep_base(base_cache, tmp_path / "cache3"))
    built = three.run("build", "t")
    assert "building it from its source" in built.stderr and digest in built.stdout

    (two.root / "backend.py").write_text(BACKEND + "# changed\n")
    assert three.run("lock", "t", "--check").stdout == "t: fresh\n", "the wheel comes out the same"
    (two.root / "backend.py").write_text(BACKEND.replace("VALUE = %r", "VALUE = 1 and %r"))
    stale = three.run("lock", "t", "--check", check=False)
    assert stale.returncode == 4 and f"the files of {two.root} changed" in stale.stdout


def test_two_wheels_of_one_name(tmp_path: Path, base_cache: Path) -> None:
    """Two targets build one package differently; a third one imports the uv.lock of the same project."""
    builder = Builder(project(tmp_path / "one", "-e .."), keep_base(base_cache, tmp_path / "cache"))
    other = RECIPE.replace("42", "43")
    (builder.root / "recipes" / "other.yaml").write_text(other)
    (builder.root / "recipes" / "uv.yaml").write_text(
        other.replace("environment: environments/t.yml", "lock: uv.lock")
    )
    command = [uv.find_uv_bin(), "lock", "--quiet", "--no-python-downloads"]
    subprocess.run(command, cwd=builder.root, check=True, capture_output=True)
    for target in ("t", "other", "uv"):
        builder.run("build", target)
    shown = builder.run("run", "uv", "--", "python", "-c", "import mine; print(mine.VALUE)")
    assert shown.stdout.strip() == "43"
    names = ("environments/t.t", "environments/t.other", "uv.uv")
    locks = [read_lock(builder.root / f"{name}.lock.yml").packages for name in names]
    first, second, third = (package.sha256 for lock in locks for package in lock if package.name == "mine")
    assert first != second == third
    assert len(list((builder.root / "wheels").rglob("mine-1.0-py3-none-any.whl"))) == 2
    assert "stale" not in builder.run("lock", "--check").stdout, "wheels/ is no file of the package"


def test_failed_build(tmp_path: Path, base_cache: Path) -> None:
    builder = Builder(project(tmp_path / "one", ".."), keep_base(base_cache, tmp_path / "cache"))
    (builder.root / "backend.py").write_text("def build_wheel(*_):\n    import numpy\n")
    done = builder.run("lock", "t", check=False)
    assert done.returncode == 7 and "No module named 'numpy'" in done.stderr, done.stderr
    assert "pip: {build: {mine: {needs: [numpy]}}}" in done.stderr
    assert not (builder.root / "wheels").exists() and not list(builder.root.rglob("*.lock.yml"))


NEEDY = """
import subprocess
from backend_of_wheel import build_wheel as wheel
def build_wheel(*args):
    subprocess.run(["make", "--version"], check=True)
    subprocess.run("pkg-config --version || exit 1", shell=True, check=True)
    return wheel(*args)
"""


def test_typed_hints(tmp_path: Path, base_cache: Path) -> None:
    """Each hint of a failed build, typed into the recipe, leads one step on, and at last to a wheel."""
    builder = Builder(project(tmp_path / "one", ".."), keep_base(base_cache, tmp_path / "cache"))
    (builder.root / "backend.py").rename(builder.root / "backend_of_wheel.py")
    (builder.root / "backend.py").write_text(NEEDY)
    recipe = builder.root / "recipes" / "t.yaml"
    for packages in ("make", "make, pkg-config"):
        failed = builder.run("lock", "t", check=False)
        typed = re.search(r"pip: \{build: \{mine: (\{base_packages: \[.*\]\})\}\}", failed.stderr)
        assert typed is not None and typed[1] == f"{{base_packages: [{packages}]}}", failed.stderr
        recipe.write_text(RECIPE.replace('{env: {VALUE: "42"}}', typed[1]))
    notes = builder.run("lock", "t").stderr
    assert "mine-1.0-py3-none-any.whl: built from" in notes and "base debian:bookworm: made" not in notes


@pytest.mark.heavy
def test_index(tmp_path: Path, base_cache: Path) -> None:
    """Packages that the index has as source only, built with setuptools."""
    folder = project(tmp_path / "one", "warmup-scheduler", "docopt")
    (folder / "recipes" / "t.yaml").write_text(RECIPE.partition("  build:")[0])
    builder = Builder(folder, keep_base(base_cache, tmp_path / "cache"))
    notes = builder.run("lock", "t").stderr
    assert "warmup_scheduler-0.3-py3-none-any.whl: built from" in notes and "docopt-0.6.2" in notes
    builder.run("build", "t")
    code = "import docopt; print(docopt.__version__)"
    assert builder.run("run", "t", "--", "python", "-c", code).stdout == "0.6.2\n"
