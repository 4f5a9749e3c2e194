"""Where the files of conda packages go: links, noarch python, and the environment's Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.formats.layers.conda_layout import python_of
from tests.support.condapackage import fetched, pack


@pytest.mark.parametrize(
    ("version", "build", "index", "expected"),
    [
        ("3.11.4", "h_0_cpython", {}, ("3.11", "lib/python3.11/site-packages")),
        ("3.13.1", "h_0_cp313t", {}, ("3.13", "lib/python3.13t/site-packages")),
        (
            "3.13.1",
            "h_0_cp313",
            {"python_site_packages_path": "lib/py/site-packages"},
            ("3.13", "lib/py/site-packages"),
        ),
    ],
)
def test_python_of(
    tmp_path: Path, version: str, build: str, index: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Version and site-packages come from the locked python package."""
    python = fetched(pack(tmp_path, "python", version=version, build=build, index=index))
    assert python_of(python) == expected
