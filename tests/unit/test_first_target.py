"""The target of ``make image``: what the index, its mirror and pip's configuration decide."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.core.settings import Settings
from tests.support.fileserver import Server
from tests.support.first_target import first_target

ROOT = Path(__file__).parents[2]
HOST = "https://download.pytorch.org"
INDEX = f"{HOST}/whl/cpu"
#: The name of PyTorch's wheel of the version in environments/cpu.yml.
WHEEL = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
#: A mirror that refuses connections.
NOTHING = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def chosen(mirror: str | Path) -> tuple[str, str]:
    """The target and the reason, with a mirror in place of PyTorch's index."""
    return first_target(Settings.from_environment({"HOME": "/h", "BUILDER_MIRRORS": f"{HOST}={mirror}"}))


def test_index(server: Server) -> None:
    """An index with a page of torch is asked once; one without such a page is of no use."""
    assert chosen(server.url) == (
        "cpu-jax",
        f"{INDEX} does not answer (HTTP 404), and pip's configuration has no {WHEEL}",
    )
    server.put("/whl/cpu/torch/", b"")
    server.log.clear()
    assert chosen(server.url) == ("cpu", f"{INDEX} has torch for the CPU")
    assert [(method, path) for method, path, *_ in server.log] == [("HEAD", "/whl/cpu/torch/")]


def test_mirror_in_a_folder(tmp_path: Path) -> None:
    assert chosen(tmp_path)[0] == "cpu-jax"
    (tmp_path / "whl/cpu/torch").mkdir(parents=True)
    assert chosen(tmp_path)[0] == "cpu"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (WHEEL, "cpu"),
        (WHEEL.replace("+cpu", ""), "cpu-jax"),  # PyPI's, for CUDA
        (WHEEL.replace("cp311", "cp312"), "cpu-jax"),
        (WHEEL.replace("2.13", "2.12"), "cpu-jax"),
    ],
)
def test_find_links(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    """Without the index, a folder or a page with the wheel of the environment will do."""
    (tmp_path / name).touch()
    page = server.put("/wheels.html", f'<a href="{name.replace("+", "%2B")}">torch</a>'.encode())
    for place in (str(tmp_path), page):
        monkeypatch.setenv("PIP_FIND_LINKS", place)
        assert chosen(NOTHING)[0] == target


def test_program() -> None:
    """The target is alone on stdout; the reason is one line. A wrong variable is no target."""
    command = [sys.executable, "-m", "tests.support.first_target"]
    env = {**os.environ, "BUILDER_MIRRORS": f"{HOST}={NOTHING}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu-jax\n"
    assert done.stderr == (
        f"target cpu-jax: {INDEX} does not answer (it refuses connections), "
        f"and pip's configuration has no {WHEEL}\n"
    )
    env["BUILDER_MIRRORS"] = "x"
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no target: BUILDER_MIRRORS: 'x' is not FROM=TO\n"
