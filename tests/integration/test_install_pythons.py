"""The Pythons that builder can be installed with: wheels of its dependencies, and the bound that says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from builder.core.version import __version__
from tests.integration.conftest import CLONE
from tests.support.debs import extract
from tests.support.parts import need, need_root

pytestmark = [pytest.mark.heavy, pytest.mark.network]
_PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
_KNOWN = ("3.11", "3.12", "3.13", "3.14", "3.15")
_ALLOWED = [version for version in _KNOWN if version in SpecifierSet(_PROJECT["requires-python"])]
_UV = Path(sys.executable).with_name("uv")


def resolve(version: str, requirements: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Resolve requirements for a Python, with wheels alone."""
    (folder / "requirements.in").write_text(requirements)
    target = ("--python-version", version, "--python-platform", "x86_64-manylinux_2_28")
    command = [_UV, "pip", "compile", "-q", *target, "--only-binary", ":all:", "requirements.in"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("version", _ALLOWED)
def test_wheels(version: str, tmp_path: Path) -> None:
    """Every dependency has a wheel for each Python that pip lets in."""
    done = resolve(version, "\n".join(_PROJECT["dependencies"]), tmp_path)
    assert done.returncode == 0 and "zstandard==0.25.0" in done.stdout, done.stderr


def test_bound(tmp_path: Path) -> None:
    """The bound is right: zstandard 0.25.0 has no wheel for 3.15, all others have one.

    When this fails, the bound of ``requires-python`` can go up: see docs/sites/install.md.
    """
    assert list(_KNOWN[:-1]) == _ALLOWED
    pinned = [line for line in _PROJECT["dependencies"] if line.startswith("zstandard")]
    others = [line for line in _PROJECT["dependencies"] if line not in pinned]
    assert resolve("3.15", "\n".join(others), tmp_path).returncode == 0
    assert "zstandard" in resolve("3.15", pinned[0], tmp_path).stderr


#: Runs the rest of its arguments in a tree, with this clone, the network and its certificates.
_ENTER = """\
root=$1; clone=$2; shift 2
for folder in dev proc tmp etc/ssl "$clone"; do mkdir -p "$root/$folder"; done
for folder in dev proc etc/ssl; do mount --rbind "/$folder" "$root/$folder"; done
mount --bind "$clone" "$root/$clone"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
exec chroot "$root" "$@"
"""


@pytest.mark.root
@pytest.mark.parametrize(("suite", "minor"), [("trixie", 13), ("sid", 14), ("sid", 15)])
def test_install(tmp_path: Path, suite: str, minor: int) -> None:
    """pip of a newer Debian installs builder, or names the Pythons that it is for (sid: pip 26)."""
    need_root()
    need("mmdebstrap")
    root, clone = tmp_path / "root", tmp_path / "clone"
    extract(["base-files", "bash", "coreutils", f"python3.{minor}-venv", f"python3.{minor}"], suite, root)
    for name in ("builder", "benchmarks"):
        shutil.copytree(CLONE / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CLONE / name, clone)
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "PYTHONPATH")}
    enter = ["unshare", "--mount", "bash", "-eu", "-c", _ENTER, "x", root, clone]
    script = f"python3.{minor} -m venv /v && /v/bin/pip install -q {clone} && /v/bin/builder --version"
    done = subprocess.run(
        [*enter, "/usr/bin/bash", "-euc", script],
        env={**env, "HOME": "/root"},
        capture_output=True,
        text=True,
    )
    if f"3.{minor}" in _ALLOWED:
        assert (done.returncode, done.stdout) == (0, f"builder, version {__version__}\n"), done.stderr
    else:
        assert re.search(
            rf"requires a different Python: 3\.{minor}\.\d+ not in '<3.15,>=3.11'", done.stderr
        ), done
