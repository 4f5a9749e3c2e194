"""torch for CPUs, and Ray with MLflow, each in a folder for PYTHONPATH, here or in containers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import debs, parts
from tests.support.install_registries import install, install_packages

FORMAT = "3"
INDEX = "https://download.pytorch.org/whl/cpu"
PACKAGES = {
    "torch": ("torch==2.13.0+cpu",),
    "ray": (
        "ray[default,train]==2.60.0",
        "mlflow==3.17.2",
        "moto[server]==5.2.5",
        "boto3==1.44.5",
        "pyarrow==25.0.1",
    ),
}
#: What is imported once, which compiles it. To compile all 21,000 files takes more than a minute.
IMPORTS = {
    "torch": "torch._dynamo, torch.distributed.run",
    "ray": "ray.train, ray.dashboard.agent, ray.dashboard.dashboard, mlflow.server, moto.server",
}


def install_folder(prefix: Path) -> Path:
    """Install the packages that the folder's name stands for, if they are not there; return their folder.

    Raises:
        NotInstalled: no package index has them.
    """
    prefix = prefix.resolve()
    target = prefix / "site"
    words = ["--target", target, *PACKAGES[prefix.name]]

    def fill(work: Path) -> None:
        try:
            install_packages(words)  # a folder of pip's settings may have it
        except subprocess.CalledProcessError:
            install_packages(["--index", INDEX, *words])
        for script in (target / "bin").iterdir():
            if script.is_file() and (data := script.read_bytes()).startswith(b"#!"):
                script.write_bytes(re.sub(rb"^#!.*python.*", b"#!/usr/bin/env python", data))
        beside = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}  # compiled modules beside sources
        code = f"import {IMPORTS[prefix.name]}"
        debs.call([sys.executable, "-c", code], PYTHONPATH=str(target), **beside)

    install(prefix.name, prefix, f"{FORMAT} {' '.join(PACKAGES[prefix.name])}", fill)
    return target


def package_folder(name: str) -> Path:
    """Return the folder with torch or ray; skip the test if it cannot be installed."""
    return parts.installed(install_folder, name)
