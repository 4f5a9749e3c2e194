"""The public Python API: its names, its page, and the program on that page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import builder
from tests.support.channel import serve
from tests.support.programs import run_program
from tests.support.project import tiny_channel, tiny_project

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()


def test_names() -> None:
    """Every public name can be imported, and the page explains it; nothing else is public."""
    assert sorted(builder.__all__) == sorted([*builder._MODULES, "__version__"]) == sorted(dir(builder))
    for name in builder.__all__:
        assert getattr(builder, name) is not None
        assert name == "__version__" or f"`{name}`" in PAGE


def test_import_is_cheap() -> None:
    """``import builder`` imports no stage."""
    code = "import sys, builder; print([m for m in sys.modules if m.startswith('builder')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "['builder.core', 'builder.core.version', 'builder']"


def test_program_of_the_page(tmp_path: Path) -> None:
    """The program runs on a small project, without the smoke test: the image has no torch."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len([line for line in program.splitlines() if line]) <= 10
    program = program.replace('"cpu"', '"tiny"')
    without_smoke_test = 'PublishOptions(to="oci:published", move_tags=False)'
    program = program.replace('PublishOptions(to="oci:published")', without_smoke_test)
    with serve(tiny_channel(tmp_path / "channel")) as server:
        project = tiny_project(tmp_path, server.url)
        environment = {**project.variables(), "PYTHONPATH": str(ROOT)}
        done = run_program([sys.executable, "-c", program], environment, cwd=project.root)
    first, last = done.stdout.splitlines()
    assert first == str(project.root / "dist")
    assert last.startswith("sha256:") and last.endswith(" ()")
    assert (project.root / "published" / "index.json").exists() and os.listdir(project.root / "dist")
