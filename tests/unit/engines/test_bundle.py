"""What the install bundle holds."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builder.engines.bundle import PLACE, make_bundle
from builder.errors import FetchError, LockError
from builder.layers.entry import LinkContext
from tests.support.engines import HASH, install_inputs, package, request


def test_wheels_need_pip(tmp_path: Path) -> None:
    packages = [package("python", version="3.11.9"), package("torch", "pip")]
    with pytest.raises(LockError, match=r"wheels but no pip from conda(.|\n)*--engine layered"):
        make_bundle(request(tmp_path, packages), install_inputs(tmp_path, packages))


def test_rattler_needs_python(tmp_path: Path) -> None:
    packages = [package("zlib")]
    made = replace(install_inputs(tmp_path, packages), context=LinkContext("/opt/conda", "", ""))
    with pytest.raises(LockError, match=r"locks no python, and rattler needs 3.10(.|\n)*micromamba"):
        make_bundle(request(tmp_path, packages, installer={"program": "rattler"}), made)


def test_bundle_with_micromamba(tmp_path: Path) -> None:
    """micromamba from a file installs an explicit list of packages in link order."""
    (tmp_path / "micromamba").write_bytes(b"\x7fELF")
    packages = [
        package("python", version="3.11.9"),
        package("pip", dependencies={"python": ""}),
        package("torch", "pip", "2.0"),
    ]
    r = request(tmp_path, packages, installer={"program": "micromamba", "micromamba": "micromamba"})
    bundle = make_bundle(r, install_inputs(tmp_path, packages))
    assert bundle.installer == "micromamba" and bundle.files["micromamba"] == tmp_path / "micromamba"
    assert bundle.files["conda.txt"] == (
        b"@EXPLICIT\n"
        + f"file://{PLACE}/conda/noarch/python-3.11.9-py_0.conda\n".encode()
        + f"file://{PLACE}/conda/noarch/pip-1.0-py_0.conda\n".encode()
    )
    assert bundle.files["requirements.txt"] == f"torch==2.0 --hash=sha256:{HASH}\n".encode()
    script = bundle.files["install.sh"]
    assert (
        isinstance(script, bytes)
        and b'"$bundle/micromamba" create' in script
        and b"--require-hashes" in script
    )
    assert subprocess.run(["sh", "-n"], input=script).returncode == 0


def test_rattler_if_micromamba_is_missing(tmp_path: Path) -> None:
    """Rattler replaces a missing micromamba, unless the recipe asks for micromamba."""
    packages = [package("zlib")]
    missing = {"micromamba": "bin/micromamba"}
    with pytest.raises(
        FetchError, match=r"recipes/t.yaml: installer.micromamba: .*bin/micromamba does not exist"
    ):
        make_bundle(
            request(tmp_path, packages, installer={"program": "micromamba", **missing}),
            install_inputs(tmp_path, packages),
        )
    with pytest.raises(LockError, match="zlib|rattler"):  # rattler is used next, and lacks a Python here
        without = replace(install_inputs(tmp_path, packages), context=LinkContext("/opt/conda", "", ""))
        make_bundle(request(tmp_path, packages, installer=missing), without)
