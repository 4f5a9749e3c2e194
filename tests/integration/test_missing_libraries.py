"""Libraries that real images lack: builder's list is what ldd says in the image, and its hint mends it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.conftest import Builder, keep_base
from tests.support.project import edit

pytestmark = [pytest.mark.heavy, pytest.mark.network]
#: Prints the names that ldd does not find for any ELF file of the image, and that no file of it has.
LDD = r"""
import json, os, re, subprocess
paths = [os.path.join(folder, name) for folder, _, names in os.walk("/", topdown=True) for name in names
         if not folder.startswith(("/proc", "/sys", "/dev", "/work"))]
def is_elf(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(6) == b"\x7fELF\2\1"
files = [path for path in paths if is_elf(path)]
printed = [subprocess.run(["ldd", path], capture_output=True, text=True).stdout for path in files]
missing = {name for text in printed for name in re.findall(r"(\S+) => not found", text)}
print(json.dumps([len(files), sorted(missing - {os.path.basename(path) for path in paths})]))
"""
RECIPE = """
base: debian:bookworm
bytecode: none
environment: environments/t.yml
pip: {fallback: pip}
"""
#: opencv-python with libraries of the window system; numba with a module for TBB.
OPENCV = ("opencv-python==4.11.0.86", "numba")
#: A module for MPI; libraries that find each other by RPATH; plugins for networks.
TORCH = ("torch==2.13.0", "mpi4py", "nvidia-cufile-cu12")


def project(folder: Path, base_cache: Path, *wheels: str) -> Builder:
    """A project with conda's Python and wheels."""
    for name in ("recipes", "environments"):
        (folder / name).mkdir(parents=True)
    (folder / "recipes/t.yaml").write_text(RECIPE)
    dependencies = ["python=3.11", *([{"pip": list(wheels)}] if wheels else [])]
    environment = {"channels": ["conda-forge"], "dependencies": dependencies}
    (folder / "environments/t.yml").write_text(yaml.safe_dump(environment))
    return Builder(folder, keep_base(base_cache, folder.parent / "cache"))


def missing(builder: Builder) -> dict[str, Any]:
    """Build, compare with ldd, and return what is missing by name."""
    found = {one["name"]: one for one in builder.json("build", "t")["missing_libraries"]}
    count, names = json.loads(builder.run("run", "t", "--", "python", "-c", LDD).stdout)
    assert count > 500 and sorted(found) == names
    return found


def test_opencv(module_folder: Path, base_cache: Path) -> None:
    """Its import fails until the recipe has what builder prints."""
    builder = project(module_folder / "opencv/project", base_cache, *OPENCV)
    found = missing(builder)
    assert found["libGL.so.1"]["packages"] == ["opencv-python"] and found["libtbb.so.12"]["optional"]
    script = ("run", "t", "--", "python", "-c", "import cv2; print(cv2.__version__)")
    assert "libGL.so.1" in builder.run(*script, check=False).stderr
    hint = builder.run("build", "t").stderr.partition("base_packages: ")[2]
    edit(builder.root / "recipes/t.yaml", base_packages=yaml.safe_load(hint.partition(";")[0]))
    builder.run("lock", "t")
    assert all(one["optional"] for one in missing(builder).values())
    assert builder.run(*script).stdout.startswith("4.11")


def test_torch(module_folder: Path, base_cache: Path) -> None:
    """Of what is imported only mpi4py lacks anything: it needs one of two libraries."""
    builder = project(module_folder / "torch/project", base_cache, *TORCH)
    found = missing(builder)
    assert {"libmpi.so.12", "libmpi.so.40", "librdmacm.so.1"} <= found.keys()
    printed = re.findall(r"missing ([^\s,]+)", builder.run("build", "t").stderr)
    assert printed == ["libmpi.so.12", "libmpi.so.40"]


def test_conda(module_folder: Path, base_cache: Path) -> None:
    """Conda's packages bring all that they need."""
    assert missing(project(module_folder / "conda/project", base_cache)) == {}
