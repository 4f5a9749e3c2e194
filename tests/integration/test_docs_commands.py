"""The documentation's commands with a mark ``<!-- run: ... -->``, executed as they are on the page."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.conftest import CLONE, Builder, new_project
from tests.support.doccommands import FILES, FOLDER, PAGES, REGISTRY, Block, blocks, marked, shims

pytestmark = [pytest.mark.network, pytest.mark.root, pytest.mark.heavy]
RUN = {
    page: scripts
    for page in PAGES
    if (scripts := [block for block in blocks(page) if (block.kind, block.what) == ("run", "cpu")])
}
#: The blocks of pages whose commands have folders of their own, by page and folder.
IN_FOLDERS: dict[tuple[Path, str], list[Block]] = {}
for _page in PAGES:
    for _block in marked(_page):
        if _block.kind in FILES:
            IN_FOLDERS.setdefault((_page, _block.what.partition("/")[0]), []).append(_block)
        elif _block.kind == "run" and _block.what.startswith(FOLDER):
            IN_FOLDERS.setdefault((_page, _block.what.removeprefix(FOLDER)), []).append(_block)


def environment(cpu: Builder, bin_folder: Path) -> dict[str, str]:
    """The variables of the commands: this clone's builder, with the cache of target cpu."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BUILDER_", "REGISTRY_"))
    }
    own = {"PATH": shims(bin_folder), "PYTHONPATH": str(CLONE), "BUILDER_CACHE": str(cpu.cache)}
    return {**kept, **own, "BUILDER_MIRRORS": os.environ.get("BUILDER_MIRRORS", "")}


def execute(block: Block, folder: Path, env: Mapping[str, str]) -> None:
    """Executes a block; a command that fails fails the test, with the output."""
    script = f"set -euo pipefail\n{block.text}\n"
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{block.where}:\n{block.text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(CLONE)))
def test_page(page: Path, cpu: Builder, tmp_path: Path) -> None:
    """A page's blocks run in their order, in a copy of the project in which target cpu is built."""
    project = new_project(tmp_path / "project", "cpu")
    shutil.copytree(cpu.root / "environments", project / "environments", dirs_exist_ok=True)
    shutil.copytree(cpu.root / "dist", project / "dist", copy_function=os.link)
    shutil.copytree(CLONE / "examples", project / "examples")
    env = environment(cpu, tmp_path / "bin")
    for block in RUN[page]:
        execute(block, project, env)


@pytest.mark.parametrize(
    ("page", "name"), IN_FOLDERS, ids=[f"{page.relative_to(CLONE)}-{name}" for page, name in IN_FOLDERS]
)
def test_folder(page: Path, name: str, cpu: Builder, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The files and commands of one folder, in their order. It is called ``mine``, so this is the target."""
    folder = tmp_path / name / "mine"
    folder.mkdir(parents=True)
    env = environment(cpu, tmp_path / "bin")
    github = f"https://github.com={repositories(tmp_path / 'mirrors')}"
    env["BUILDER_MIRRORS"] = f"{github}\n{env.get('BUILDER_MIRRORS', '')}"
    for block in on_registry(IN_FOLDERS[page, name], request):
        if block.kind == "run":
            execute(block, folder, env)
            continue
        path = folder / block.what.partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.kind == "append" else "w") as file:
            file.write(block.text + "\n")


def on_registry(found: list[Block], request: pytest.FixtureRequest) -> list[Block]:
    """The blocks with a real registry in place of the pages' one, which is started if they name it."""
    if not any(REGISTRY in block.text for block in found):
        return found
    host = request.getfixturevalue("registry").host
    return [replace(block, text=block.text.replace(REGISTRY, host)) for block in found]


def repositories(folder: Path) -> Path:
    """A folder in place of github.com, with the repository ``example/tool`` of the pages."""
    tool = folder / "example" / "tool"
    tool.mkdir(parents=True)
    (tool / "pyproject.toml").write_text(
        '[project]\nname = "tool"\nversion = "1.0"\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    )
    (tool / "tool.py").touch()
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "one"], ["tag", "v1.0"]):
        subprocess.run(["git", *words], cwd=tool, check=True, capture_output=True)
    return folder
