"""The archives of a build's packages, which several threads read."""

from __future__ import annotations

import subprocess
import sys

#: Fetches an archive in a new Python, and shows which readers are imported when it is there.
_FETCH = """
import sys
from builder.formats.layers.entry import LinkContext
from builder.formats.layers.packages import Packages
from builder.core.model import LockedPackage

def fetch(packages):
    print(sorted({"builder.formats.layers.conda", "builder.formats.layers.wheel"} & sys.modules.keys()))
    return []

one = LockedPackage("six", "1", "pip", "linux-64", "https://host.example/six-1-py3-none-any.whl", "0" * 64)
Packages([one], LinkContext("/opt/conda", "", ""), None, fetch).fetch([one])
"""


def test_readers_are_imported_once() -> None:
    """Before any thread reads an archive: two that import the readers at once may get a part of them."""
    done = subprocess.run([sys.executable, "-c", _FETCH], capture_output=True, text=True, check=True)
    assert done.stdout == "['builder.formats.layers.conda', 'builder.formats.layers.wheel']\n"
