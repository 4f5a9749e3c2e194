"""``make image``, with stand-ins for builder, for the choice of the target and for the channel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make_image(folder: Path, *words: str, chosen: str = "cpu", code: int = 0) -> tuple[str, list[str]]:
    """Run make image; return what it prints, and the calls of builder and of the chooser.

    Args:
        folder: for the stand-ins.
        words: arguments of make.
        chosen: the target that the chooser prints; empty: it fails.
        code: the exit code of ``builder build``.
    """
    calls = folder / "calls"
    python = f"*first_target) echo choose >>{calls}; echo {chosen}; [ '{chosen}' ] || exit 3;; *) echo a=b;;"
    (folder / "python").write_text(f'#!/bin/sh\ncase "$*" in {python} esac\n')
    builder = f'echo "$@" >>{calls}; [ $BUILDER_MIRRORS = a=b ] || exit 4; [ $1 != build ] || exit {code}'
    (folder / "builder").write_text(f"#!/bin/sh\n{builder}\n")
    for name in ("python", "builder"):
        (folder / name).chmod(0o755)
    command = ["make", "-o", "apt-image", "-o", "setup", "image", f"BIN={folder}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, calls.read_text().splitlines()


@pytest.mark.parametrize(("target", "module"), [("cpu", "torch"), ("cpu-jax", "jax")])
def test_chosen_target(tmp_path: Path, target: str, module: str) -> None:
    """The target is chosen before anything is built, and the last line runs its image."""
    printed, calls = make_image(tmp_path, chosen=target)
    assert calls == ["choose", f"build {target}", f"smoke {target}"]
    assert f"image: oci:{ROOT}/dist:{target}\n" in printed
    program = f"python -c 'import {module}; print({module}.__version__)'"
    assert printed.splitlines()[-1] == f"next:  {tmp_path}/builder run {target} -- {program}"


@pytest.mark.parametrize(("target", "module"), [("cpu", "torch"), ("cpu-jax", "jax"), ("cirrus", "numpy")])
def test_named_target(tmp_path: Path, target: str, module: str) -> None:
    """If the user names a target, nothing is asked."""
    printed, calls = make_image(tmp_path, f"TARGET={target}", chosen="")
    assert calls == [f"build {target}", f"smoke {target}"]
    assert f"builder run {target} -- python -c 'import {module};" in printed.splitlines()[-1]


def test_failures(tmp_path: Path) -> None:
    """No other target is tried if the build fails, and none is built if the choice fails."""
    printed, calls = make_image(tmp_path, code=6)
    assert calls == ["choose", "build cpu"] and "Error 6" in printed and "next:" not in printed
    (tmp_path / "calls").unlink()
    printed, calls = make_image(tmp_path, chosen="")
    assert calls == ["choose"] and "Error 3" in printed
