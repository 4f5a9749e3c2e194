"""``make image``, with stand-ins for builder and for the program that makes the channel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "words", "called"),
    [
        (0, [], ["build cpu", "smoke cpu"]),
        (6, [], ["build cpu", "build cpu-jax", "smoke cpu-jax"]),
        (6, ["TARGET=cpu"], ["build cpu"]),
        (7, [], ["build cpu"]),
    ],
)
def test_image(tmp_path: Path, code: int, words: list[str], called: list[str]) -> None:
    """Where nothing has torch for the CPU, the image is that of cpu-jax, unless the user names a target."""
    builder = tmp_path / "builder"
    builder.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n[ "$*" != "build cpu" ] || exit {code}\n')
    builder.chmod(0o755)
    (tmp_path / "python").symlink_to("/bin/true")
    command = ["make", "-o", "apt-image", "-o", "setup", "image", f"BIN={tmp_path}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tmp_path / "calls").read_text().splitlines() == called
    assert (done.returncode == 0) == (called[-1].startswith("smoke"))
    if done.returncode == 0:
        target, module = ("cpu-jax", "jax") if code else ("cpu", "torch")
        assert f"dist:{target}\n" in done.stdout and f"import {module};" in done.stdout
    else:
        assert f"Error {code}" in done.stderr
