"""Where the files of conda packages go: links, noarch python, and the environment's Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import LayerError
from builder.layers.conda import CondaReader
from builder.layers.conda_layout import python_context
from builder.layers.entry import Entry, LinkContext
from tests.support.conda_reader import CONTEXT, read
from tests.support.condapackage import (
    Member,
    fetched,
    pack,
    symlink,
)


def test_links_that_leave_through_links(tmp_path: Path) -> None:
    """A link that leaves the prefix by way of another link is refused."""
    members = [
        symlink("p/q/r/b", "../../../top"),
        symlink("p/q/r/a", "b/../../etc"),
    ]  # read as text, a would stay inside
    package = fetched(pack(tmp_path, "thing", members))
    with pytest.raises(LayerError, match="'p/q/r/a' is a link that leaves the environment"):
        read(package, tmp_path)


@pytest.mark.parametrize(
    "target", ["libz.so.1", "../bin/tool", "/opt/conda/bin/tool", "./a/../b", "loop", "../lib/../share/x"]
)
def test_links_that_stay_inside(tmp_path: Path, target: str) -> None:
    """A link that stays inside the prefix is installed unchanged."""
    package = fetched(pack(tmp_path, "thing", [symlink("lib/link", target), symlink("lib/loop", "loop")]))
    assert read(package, tmp_path)["opt/conda/lib/link"][0] == Entry(
        "opt/conda/lib/link", "symlink", 0o777, target=target
    )


def test_files_below_a_link(tmp_path: Path) -> None:
    """A package with files below its own symlink is refused."""
    package = fetched(pack(tmp_path, "thing", [symlink("lib64", "lib"), Member("lib64/x", b"")]))
    with pytest.raises(LayerError, match="'lib64' is a symlink and has files below it"):
        CondaReader(tmp_path).index(package, CONTEXT)


@pytest.mark.parametrize(
    ("path", "installed"),
    [
        ("lib/p/__pycache__/m.cpython-311.pyc", False),
        ("lib/p/__pycache__/m.cpython-311.opt-2.pyc", False),
        ("lib/p/__pycache__/m.cpython-313t.pyc", False),
        ("lib/p/__pycache__/a.b.cpython-39.pyc", False),
        ("lib/p/__pycache__/other.cpython-311.pyc", True),
        ("lib/__pycache__/m.cpython-311.pyc", True),
        ("lib/p/m.pyc", True),
        ("lib/p/__pycache__/m.txt", True),
    ],
)
def test_compiled_modules(tmp_path: Path, path: str, installed: bool) -> None:
    """A compiled module is left out if its source is in the package."""
    members = [Member("lib/p/m.py", b"1\n"), Member("lib/p/a.b.py", b"1\n"), Member(path, b"pyc")]
    package = fetched(pack(tmp_path, "thing", members))
    entries = read(package, tmp_path)
    assert (f"opt/conda/{path}" in entries) == installed
    _, record = entries["opt/conda/conda-meta/thing-1.0-0.json"]
    assert (f'"{path}"'.encode() in record) == installed
    index = {e.path for e in CondaReader(tmp_path).index(package, CONTEXT).entries}
    assert index == set(entries)


def test_noarch_without_python(tmp_path: Path) -> None:
    """A noarch python package needs a Python in the environment."""
    package = fetched(pack(tmp_path, "thing", noarch="python"))
    with pytest.raises(LayerError, match="noarch python, and the environment has no python"):
        CondaReader(tmp_path).index(package, LinkContext("/opt/conda", "", ""))


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
def test_python_context(
    tmp_path: Path, version: str, build: str, index: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Version and site-packages come from the locked python package."""
    python = fetched(pack(tmp_path, "python", version=version, build=build, index=index))
    context = python_context([python.package], [python], "/opt/conda", "linux-64", frozenset({"python"}))
    assert (context.python, context.site_packages) == expected
    assert context.interpreter == f"/opt/conda/bin/python{expected[0]}"


def test_python_context_errors(tmp_path: Path) -> None:
    """No Python is fine; one that is damaged, unknown or not fetched is an error."""
    assert python_context([], [], "/opt/conda", "linux-64", frozenset()).python == ""
    python = fetched(pack(tmp_path, "python", index={"python_site_packages_path": "../../etc"}))
    with pytest.raises(LayerError, match="unsafe python_site_packages_path"):
        python_context([python.package], [python], "/opt/conda", "linux-64", frozenset())
    with pytest.raises(LayerError, match="is not a version of Python"):
        strange = fetched(pack(tmp_path, "python", version="x"))
        python_context([strange.package], [strange], "/opt/conda", "linux-64", frozenset())
    with pytest.raises(LayerError, match="was not fetched"):
        python_context([python.package], [], "/opt/conda", "linux-64", frozenset())
