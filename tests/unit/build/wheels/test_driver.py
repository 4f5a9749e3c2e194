"""The program that calls a build backend."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from builder.build.wheels import driver

BACKEND = """
class Hooks:
    def get_requires_for_build_wheel(self, settings=None):
        return ["cython", "ninja"]
    def build_wheel(self, out, settings=None):
        open(out + "/made", "w").write(repr(settings))
        return "made"
hooks = Hooks()
"""


def run(folder: Path, **changes: object) -> int:
    """Runs the hooks with a plan, in a process whose build folder is ``folder``."""
    plan = {
        "source": "sub",
        "no_isolation": False,
        "requires": ["cython", "ninja"],
        "backend": "own:hooks",
        "backend_path": ["."],
        "config_settings": {},
    }
    (folder / "source" / "sub").mkdir(parents=True)
    (folder / "source" / "sub" / "own.py").write_text(BACKEND)
    (folder / "out").mkdir()
    (folder / "plan.json").write_text(json.dumps(plan | changes))
    program = Path(driver.__file__).read_text().replace('Path("/build")', f'Path("{folder}")')
    (folder / "driver.py").write_text(program)
    return subprocess.run([sys.executable, folder / "driver.py", "hooks"], capture_output=True).returncode


def test_built(tmp_path: Path) -> None:
    assert run(tmp_path, config_settings={"a": "b"}) == 0
    assert (tmp_path / "out" / "made").read_text() == "{'a': 'b'}"
    assert json.loads((tmp_path / "built.json").read_text()) == "made"


def test_more_requirements(tmp_path: Path) -> None:
    """The host resolves what the backend asks for, and runs the build again."""
    assert run(tmp_path, requires=["cython"]) == driver.NEEDS_MORE
    assert json.loads((tmp_path / "requires.json").read_text()) == ["ninja"]
    assert not (tmp_path / "out" / "made").exists()


def test_no_isolation(tmp_path: Path) -> None:
    """As with pip, a build without isolation has what the image has."""
    assert run(tmp_path, requires=[], no_isolation=True) == 0
