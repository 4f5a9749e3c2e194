"""PyTorch for CPUs in a folder for PYTHONPATH, beside the virtual environment of the servers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import parts
from tests.support.debs import NotInstalled
from tests.support.install_registries import install, install_packages

FORMAT = "1"
#: What torch needs beyond the packages of the servers, without those for CUDA.
PACKAGES = ("torch==2.13.0+cpu", "sympy==1.14.0", "mpmath==1.3.0", "networkx==3.5")
INDEX = "https://download.pytorch.org/whl/cpu"


def install_torch(prefix: Path) -> Path:
    """The folder with torch in ``prefix``, installed there when it is not yet.

    Raises:
        NotInstalled: no package index has it.
    """
    prefix = prefix.resolve()
    target = prefix / "site"
    words = ["--no-deps", "--target", target, *PACKAGES]

    def fill(work: Path) -> None:
        try:
            install_packages(words)  # a folder of pip's settings may have it
        except subprocess.CalledProcessError:
            install_packages(["--index", INDEX, *words])

    install("torch", prefix, f"{FORMAT} {' '.join(PACKAGES)}", fill)
    return target


def torch_folder() -> Path:
    """The folder with torch; skips the test if it cannot be installed."""
    try:
        return install_torch(parts.CLONE / ".cache/parts/torch")
    except NotInstalled as e:
        parts.part_missing(str(e))
