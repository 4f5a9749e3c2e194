"""The version, and one sentence for a Python that is too old."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core.version import __version__

ROOT = Path(__file__).parents[3]
#: Makes an old interpreter of this one.
_OLD = "import sys; sys.version_info = (3, 9, 18, 'final', 0); sys.version = '3.9.18 (main)'\n"
_BUILD = "import hatchling.build\nhatchling.build.prepare_metadata_for_build_wheel(sys.argv[1])"


@pytest.mark.parametrize(
    "start",
    [
        "sys.argv[0] = 'publish.py'; import runpy; runpy.run_path('publish.py', run_name='__main__')",
        "import builder",
        _BUILD,
    ],
    ids=["publish.py", "builder", "pip install"],
)
def test_old_python(start: str, tmp_path: Path) -> None:
    """publish.py, ``python -m builder`` and an installation say which Python builder needs."""
    command = [sys.executable, "-c", _OLD + start, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "builder needs Python 3.11 or newer, this is 3.9.18\n"


@pytest.mark.parametrize("file", ["publish.py", "builder/__init__.py", "builder/core/version.py"])
def test_old_syntax(file: str) -> None:
    """Old versions read these files, up to the sentence; ``from __future__ import annotations`` is of 3.7."""
    text = (ROOT / file).read_text()
    ast.parse(text, feature_version=(3, 6))
    assert "import annotations" not in text


def test_changelog() -> None:
    """The version is that of the newest release in the changelog, which has a date."""
    releases = re.findall(
        r"^## \[(?!Unreleased)(.+?)\] - \d{4}-\d\d-\d\d$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert releases[0] == __version__
