"""``builder build --target lumi-g`` in a fresh clone: with mirrors for base, channel and index, and without a
network.

The registry is docker-registry; base and packages are small stand-ins with the names of the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.core.store.blobs import Store
from builder.core.store.files import sha256_file
from builder.formats.oci.reference import Reference
from builder.formats.registry.client import RegistryClient
from builder.lock.config.recipe import load_recipe
from builder.lock.file import read_lock
from tests.support import parts
from tests.support.images import push_tagged
from tests.support.sitemirrors import PYTORCH, Mirrors, make_mirrors, stand_in_base

TARGET = "lumi-g"


@dataclass
class FreshClone:
    """A clone without locks, as git makes it."""

    root: Path
    mirrors: Mirrors

    def run(self, *args: str, without_network: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("PIP_", "BUILDER_", "UV_"))
        }
        variables |= {
            "BUILDER_CACHE": str(self.root.parent / "cache"),
            "PYTHONPATH": str(parts.CLONE),
            "PIP_CONFIG_FILE": os.devnull,
            **env,
        }
        command = [sys.executable, "-m", "builder", *args]
        if without_network:
            need_network_namespaces()
            command = ["unshare", "--user", "--map-root-user", "--net", *command]
        return subprocess.run(command, cwd=self.root, env=variables, capture_output=True, text=True)


def need_network_namespaces() -> None:
    trial = ["unshare", "--user", "--map-root-user", "--net", "true"]
    if subprocess.run(trial, capture_output=True).returncode:
        parts.part_missing("this machine allows no network namespaces")


@pytest.fixture
def clone(tmp_path: Path) -> FreshClone:
    parts.need("mksquashfs", "siftool")
    root = tmp_path / "clone"
    for name in ("recipes", "environments"):
        shutil.copytree(parts.CLONE / name, root / name, ignore=shutil.ignore_patterns("*.lock.yml"))
    return FreshClone(root, make_mirrors(tmp_path / "mirrors", [load_recipe(TARGET, root)]))


def test_mirrors(clone: FreshClone, registry: parts.Registry, tmp_path: Path) -> None:
    """One variable is enough to lock and build the SIF; the lock has public addresses only."""
    recipe = load_recipe(TARGET, clone.root)
    base = Reference.parse(recipe.base)
    made = stand_in_base(Store(tmp_path / "store"), recipe.platform)
    with RegistryClient(registry.host) as client:
        push_tagged(made, client, f"mirror/{base.repository}", [base.ref])
    mirrors = clone.mirrors.lines(hub=f"docker://{registry.host}/mirror")
    done = clone.run(
        "build", "--target", TARGET, "--json",
        BUILDER_MIRRORS="\n".join(mirrors), PIP_INDEX_URL=clone.mirrors.index,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lock = read_lock(recipe.lock_path)
    assert lock.base is not None
    assert (lock.base.reference, lock.base.digest) == (recipe.base, made.digest)
    text = recipe.lock_path.read_text()
    assert registry.host not in text and str(tmp_path) not in text
    torch = next(package for package in lock.packages if package.name == "torch")
    assert torch.version == "2.10.0+rocm7.0" and torch.url.startswith(f"{PYTORCH}/whl/rocm7.0/")
    sif = clone.root / "dist" / f"{TARGET}.sif"
    assert sha256_file(sif) == json.loads(done.stdout)["digest"]
    listed = subprocess.run(["siftool", "list", str(sif)], check=True, capture_output=True, text=True).stdout
    assert "Squashfs" in listed


def test_no_network(clone: FreshClone) -> None:
    """The error names the host that does not answer, and where to read about mirrors."""
    done = clone.run("build", "--target", TARGET, without_network=True)
    assert done.returncode == 9, done.stderr
    assert "cannot reach docker.io" in done.stderr
    assert "BUILDER_MIRRORS (docs/offline.md)" in done.stderr


def test_partly(clone: FreshClone) -> None:
    """With mirrors for some of them, the error names the others."""
    lines = [line for line in clone.mirrors.lines() if PYTORCH not in line]
    done = clone.run("lock", TARGET, without_network=True, BUILDER_MIRRORS="\n".join(lines))
    assert done.returncode == 6, done.stderr
    assert "package index https://download.pytorch.org/whl/rocm7.0" in done.stderr
    assert "channel conda-forge" not in done.stderr and "docker.io" not in done.stderr
