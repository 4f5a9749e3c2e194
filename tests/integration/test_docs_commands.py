"""The documentation's commands with the mark ``<!-- run: cpu -->``, executed as they are on the page."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import CLONE, Builder, new_project
from tests.support.doccommands import PAGES, blocks, shims

pytestmark = [pytest.mark.network, pytest.mark.root]
RUN = {
    page: scripts
    for page in PAGES
    if (scripts := [block for block in blocks(page) if (block.kind, block.what) == ("run", "cpu")])
}


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(CLONE)))
def test_page(page: Path, cpu: Builder, tmp_path: Path) -> None:
    """A page's blocks run in their order, in a copy of the project in which target cpu is built."""
    project = new_project(tmp_path / "project", "cpu")
    shutil.copytree(cpu.root / "environments", project / "environments", dirs_exist_ok=True)
    shutil.copytree(cpu.root / "dist", project / "dist", copy_function=os.link)
    shutil.copytree(CLONE / "examples", project / "examples")
    env = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BUILDER_", "REGISTRY_"))
        },
        "PATH": shims(tmp_path / "bin"),
        "PYTHONPATH": str(CLONE),
        "BUILDER_CACHE": str(cpu.cache),
    }
    for block in RUN[page]:
        script = f"set -euo pipefail\n{block.text}\n"
        done = subprocess.run(["bash", "-c", script], cwd=project, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{block.where}:\n{block.text}\n{done.stdout}{done.stderr}"
