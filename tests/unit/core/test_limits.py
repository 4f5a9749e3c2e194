"""What programs and libraries that read the network may take. The limits are small ones of the tests."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core import limits
from builder.core.errors import FetchError
from builder.core.limits import run_tool
from builder.core.model import LockedPackage
from builder.core.settings import Settings
from builder.lock.channels import probe_channels
from builder.lock.conda import solve_conda
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs
from builder.lock.pip import solve_pip
from builder.lock.request import SolveRequest
from builder.lock.uv import uv_program
from tests.support.channel import index_channel, make_package, serve

SMALL = 64 << 10
LATE = FetchError("late")


def tool(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_tool([sys.executable, "-c", code], folder, {}, 60, LATE)


def test_memory(tmp_path: Path) -> None:
    """A tool that locks cannot take more."""
    done = tool(f"x = bytearray({limits.MAX_MEMORY + (1 << 30)})", tmp_path)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "MemoryError"


def test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool cannot write a larger file. It gets an error, and is not killed by a signal."""
    monkeypatch.setattr(limits, "MAX_FILE", SMALL)
    code = "f = open('file', 'wb', 0); f.write(bytes({})); f.write(b'x')"
    done = tool(code.format(SMALL), tmp_path)
    assert done.returncode == 1 and "OSError: [Errno 27] File too large" in done.stderr
    assert (tmp_path / "file").stat().st_size == SMALL
    assert tool(code.format(SMALL - 1), tmp_path).returncode == 0


def test_lower_limits_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of a batch system stay."""
    monkeypatch.setattr(limits, "MAX_FILE", 1 << 40)
    lower = (30 << 30, 30 << 30)
    code = f"import resource as r; assert r.getrlimit(r.RLIMIT_FSIZE) == {lower}"
    inner = limits.limited(sys.executable, "-c", code)
    outer = f"import os, resource as r; r.setrlimit(r.RLIMIT_FSIZE, {lower}); os.execvp('sh', {inner})"
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def request(folder: Path, url: str) -> SolveRequest:
    text = f"channels: ['{url}/a', '{url}/b']\ndependencies: [python=3.11]\n"
    (folder / "e.yml").write_text(text)
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": folder}
    recipe = Recipe.model_validate(values)
    settings = Settings.from_environment({"HOME": str(folder), "BUILDER_CACHE": str(folder / "cache")})
    return SolveRequest(recipe, Inputs.read(recipe).environment, settings)


def test_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rattler writes an index as a file: a small archive on a server may be a file that fills the disk."""
    channel = tmp_path / "channel"
    for name in ("a", "b"):
        for number in range(400):  # of one text, so much smaller on the server
            make_package(channel / name, f"package{number}", "1.0")
        make_package(channel / name, "python", "3.11.9", "0_cpython")
        index_channel(channel / name)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serve(channel) as server:
        asking = request(tmp_path, server.url)
        monkeypatch.setattr(limits, "MAX_INDEX", SMALL)
        with pytest.raises(FetchError, match="File too large") as error:
            solve_conda(asking)
        assert "more than builder lets one program take" in error.value.hint
        answering, problems = probe_channels(asking)
        assert not answering and len(problems) == 2 and all("File too large" in p for p in problems)
        assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
        sizes = [p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file()]
        assert max(sizes, default=0) <= SMALL
        monkeypatch.setattr(limits, "MAX_INDEX", 1 << 30)
        assert [package.name for package in solve_conda(asking)[0]] == ["python"]


@pytest.mark.parametrize("limit", ["MAX_MEMORY", "MAX_FILE"])
def test_uv(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv itself is under both."""
    (tmp_path / "requirements.in").write_text("")
    command = [uv_program(), "pip", "compile", "requirements.in", "--offline", "--cache-dir"]
    assert run_tool([*command, "one"], tmp_path, {"PATH": "/usr/bin:/bin"}, 60, LATE).returncode == 0
    monkeypatch.setattr(limits, limit, 512)
    assert run_tool([*command, "two"], tmp_path, {"PATH": "/usr/bin:/bin"}, 60, LATE).returncode != 0


def test_uv_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is not reported as requirements that have no solution."""
    (tmp_path / "e.yml").write_text("channels: [c]\ndependencies: [python, {pip: [absent]}]\n")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    recipe = Recipe.model_validate(values)
    settings = Settings.from_environment({"HOME": str(tmp_path), "BUILDER_CACHE": str(tmp_path / "cache")})
    python = LockedPackage(
        "python", "3.11.2", "conda", "linux-64", "https://h/python-3.11.2-0.conda", "0" * 64
    )
    asking = SolveRequest(recipe, Inputs.read(recipe).environment, settings)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(limits, "MAX_FILE", 512)
    with pytest.raises(FetchError, match="File too large") as error:
        solve_pip(asking, [python])
    assert "more than builder lets one program take" in error.value.hint
