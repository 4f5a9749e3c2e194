"""The first hour of a new user, as scripts that they type: from an own environment to a published image.

They run on a machine that has Python and a package index, and nothing else (tests/support/freshmachine.py).
A registry on loopback takes the place of Docker Hub, and another that of the user's own registry.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.bases.resolve import resolve_base
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support import parts
from tests.support.debian_channel import CHANNEL_FOLDER, make_debian_channel
from tests.support.freshmachine import USER, FreshMachine, fresh_machine, give, serve_base

pytestmark = [pytest.mark.root, pytest.mark.registry, pytest.mark.network]

CLONE = Path(__file__).parents[2]
WALKS = CLONE / "tests" / "walks"
#: The user's copy of a conda channel.
CHANNEL = f"https://conda.anaconda.org/conda-forge=/home/{USER}/channel"


@pytest.fixture(scope="module")
def machine(base_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshMachine]:
    """A fresh machine with the user's two files in ``mine``, and builder installed from its wheel."""
    folder = tmp_path_factory.mktemp("fresh")
    wheel = _wheel(folder / "wheel")
    with parts.part_folder("registry") as files:
        registry = parts.start_registry(files)
        try:
            settings = Settings.from_environment(cache=base_cache)
            base = resolve_base("debian:bookworm", "amd64", settings, Store(base_cache))
            serve_base(registry.host, "library/debian", "bookworm-slim", base_cache, base.digest)
            hub = f"docker://docker.io/library=docker://{registry.host}/library"
            variables = {"REGISTRY": f"{registry.host}/me", "BUILDER_MIRRORS": f"{hub}\n{CHANNEL}"}
            with fresh_machine(folder / "machine", base_cache, base.digest, **variables) as fresh:
                give(fresh, wheel, wheel.name)
                give(fresh, WALKS / "project", "mine")
                give(fresh, make_debian_channel(CHANNEL_FOLDER), "channel")
                done = fresh.run(f"BUILDER=~/{wheel.name}\n{_script('install')}")
                assert done.returncode == 0, done.stdout + done.stderr
                yield fresh
        finally:
            registry.stop()


def _wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CLONE]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def _script(name: str) -> str:
    return (WALKS / f"{name}.sh").read_text()


def _commands(name: str) -> list[str]:
    lines = (line.strip() for line in _script(name).splitlines())
    return [line for line in lines if line and not line.startswith(("#", "set "))]


def _walk(machine: FreshMachine, name: str) -> str:
    """Runs a script in the user's project; returns all that it printed."""
    done = machine.run(_script(name), folder="mine")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "error" not in text and "Traceback" not in text, text
    return text


def test_walks(machine: FreshMachine) -> None:
    """An own environment to a running image in three commands; published twice and pulled; then changed.

    The second publish sends nothing. No file is edited by hand, except for the added package.
    """
    assert len(_commands("image")) <= 3
    before = (machine.home / "mine" / "environment.yml").read_bytes()
    assert "slope 2.0" in _walk(machine, "image")
    assert (machine.home / "mine" / "environment.yml").read_bytes() == before
    assert (machine.home / "mine" / "model.txt").read_text() == "2.0", "what builder run writes stays"

    published = _walk(machine, "publish")
    assert published.count("sent 0 blobs") == 1 and "mine is now" in published
    index = json.loads((machine.home / "pulled" / "index.json").read_bytes())
    assert [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index["manifests"]] == [
        "mine"
    ]

    assert "rich is in the image" in _walk(machine, "change")
