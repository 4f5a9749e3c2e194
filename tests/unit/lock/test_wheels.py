"""Which wheel of a package is locked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import SolveError
from builder.core.model import LockedPackage
from builder.core.settings import Settings
from builder.lock.config.recipe import Recipe
from builder.lock.request import SolveRequest
from builder.lock.spec import Environment, Spec
from builder.lock.wheels import WheelChooser


def chooser(root: Path, *specs: Spec, python: str = "3.11.2") -> WheelChooser:
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": root, "source": root}
    environment = Environment(root / "e.yml", "", ("c",), (), specs)
    settings = Settings.from_environment({"HOME": str(root)})
    request = SolveRequest(Recipe.model_validate(values), environment, settings)
    return WheelChooser(request, python, ())


def wheel(tag: str, digit: str) -> dict[str, Any]:
    url = f"https://h.example/tool-1-{tag}.whl"
    return {"url": url, "hashes": {"sha256": digit * 64}}


PACKAGE = {
    "name": "tool",
    "wheels": [wheel("py3-none-any", "a"), wheel("cp311-cp311-manylinux2014_x86_64", "b")],
}


def test_hashes_of_a_requirement(tmp_path: Path) -> None:
    """Only a wheel with one of them is locked (--hash); without hashes the best one is."""
    assert chooser(tmp_path, Spec("tool", "tool", "r:1")).locked(PACKAGE).sha256 == "b" * 64
    named = Spec("tool", "tool", "r.txt:2", hashes=("sha256:" + "a" * 64, "sha256:" + "c" * 64))
    assert chooser(tmp_path, named).locked(PACKAGE).sha256 == "a" * 64
    other = Spec("tool", "tool", "r.txt:2", hashes=("sha256:" + "c" * 64,))
    with pytest.raises(SolveError, match="r.txt:2: no wheel of tool has a hash that the requirement names"):
        chooser(tmp_path, other).locked(PACKAGE)


@pytest.mark.parametrize(
    ("python", "best"),
    [
        ("3.13.1", "cp313-cp313"),
        ("3.13.1t", "cp313-cp313t"),
        ("3.14.0", "cp311-abi3"),
        ("3.14.0t", "py3-none"),
        ("3.15.0", "cp315-abi3.abi3t"),
        ("3.15.0t", "cp315-abi3.abi3t"),
    ],
)
def test_abi(tmp_path: Path, python: str, best: str) -> None:
    """A free-threaded Python has no use for cp313 and abi3; since 3.15 there is abi3t for both."""
    tags = ("cp313-cp313", "cp313-cp313t", "cp311-abi3", "cp315-abi3.abi3t", "py3-none")
    wheels = [wheel(f"{tag}-manylinux_2_28_x86_64", str(number)) for number, tag in enumerate(tags)]
    found = chooser(tmp_path, python=python).locked({"name": "tool", "wheels": wheels})
    assert found.filename == f"tool-1-{best}-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("https://h/linux-64/python-3.13.1-h9a34b6e_5_cp313t.conda", "3.13.1t"),
        ("https://h/linux-64/python-3.13.1-h9a34b6e_105_cp313.conda", "3.13.1"),
        ("https://h/linux-64/python-3.14.0-0_cp314t.tar.bz2", "3.14.0t"),
        ("builder://base/usr/local/bin/python3.13t/linux-64/python-3.13.1-venv_0.conda", "3.13.1t"),
        ("builder://base/usr/bin/python3.13/linux-64/python-3.13.1-venv_0.conda", "3.13.1"),
    ],
)
def test_python_version(url: str, version: str) -> None:
    """The ABI of a Python is in its build string, or in the name of the base's interpreter."""
    assert (
        LockedPackage("python", version.rstrip("t"), "conda", "linux-64", url, "0").python_version == version
    )
