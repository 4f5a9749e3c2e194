"""One cache and one ``dist/`` for the builds of eight hosts, on a file system without locks."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.oci.layout import list_tags
from tests.integration.test_faults import sound
from tests.support.channel import Server, serve
from tests.support.other_hosts import NO_LOCKS, start_on, without_locks
from tests.support.project import TinyProject, tiny_channel, tiny_project, whole

pytestmark = pytest.mark.root
CLONE = Path(__file__).parents[2]
HOSTS = 8


@dataclass(frozen=True)
class Shared:
    """A locked project with a target per host, and the digests of their images."""

    project: TinyProject
    server: Server
    digests: dict[str, str]

    def env(self, cache: Path) -> dict[str, str]:
        return {**self.project.variables(), "PYTHONPATH": str(CLONE), "BUILDER_CACHE": str(cache)}

    def command(self, *args: str | Path) -> list[str]:
        words = (sys.executable, "-m", "builder", "--project", self.project.root, *args, "--json")
        return [str(word) for word in words]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with serve(tiny_channel(folder / "channel")) as server:
        project = tiny_project(folder, server.url)
        for number in range(HOSTS):
            form = "sif" if number == 0 else "oci"
            text = f"extends: tiny\nformat: {form}\nenv: {{NUMBER: '{number}'}}\n"
            (project.recipe.parent / f"t{number}.yaml").write_text(text)
        made = Shared(project, server, {})
        names = [f"t{number}" for number in range(HOSTS)]
        process = start_on("reference", made.command("build", *names), made.env(folder / "reference"))
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        made.digests.update({answer["target"]: answer["digest"] for answer in json.loads(out)})
        shutil.rmtree(project.root / "dist")
        yield made


@pytest.mark.parametrize("kind", NO_LOCKS)
def test_eight_builders(shared: Shared, tmp_path: Path, kind: str) -> None:
    """All images are as those of one host with locks, all tags are there, and no file is damaged or left."""
    env = shared.env(tmp_path / "cache") | without_locks(tmp_path, kind)
    layout = tmp_path / "dist"
    running = {
        name: start_on(f"node-{name}", shared.command("build", name, "--layout", layout), env)
        for name in shared.digests
    }
    for name, process in running.items():
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, f"{name}: {errors}"
        assert json.loads(out)["digest"] == shared.digests[name]
    images = {name: digest for name, digest in shared.digests.items() if name != "t0"}
    assert list_tags(layout) == images and (layout / "t0.sif").exists()
    for digest in images.values():
        whole(layout, digest)
    sound(tmp_path / "cache")
