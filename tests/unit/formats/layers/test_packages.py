"""The archives of a build's packages, which several threads read."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from pathlib import Path

from builder.core.settings import Settings
from builder.core.workspace import Workspace
from tests.support import condapackage
from tests.support.channel import make_package
from tests.support.packagefiles import files_of
from tests.support.reporters import Warnings
from tests.support.wheels import fetched, make_wheel

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


def test_wheel_replaces_a_conda_package(tmp_path: Path, settings: Settings) -> None:
    """As pip does: what the RECORD of the same distribution lists is removed, and nothing else."""
    site, info = "lib/python3.11/site-packages", "Some.Name-1.0.dist-info"
    files = {f"{site}/some/old.py": "", f"{site}/some/__init__.py": "1", f"{site}/{info}/METADATA": ""}
    files |= {"bin/tool": "", "lib/libsome.so": "", f"{site}/other-1.0.dist-info/RECORD": "other.py,,\n"}
    rows = ["some/old.py", "some/__init__.py", f"{info}/METADATA", f"{info}/RECORD", "../../../bin/tool"]
    files[f"{site}/{info}/RECORD"] = "".join(f"{row},sha256=x,1\n" for row in rows)
    conda = make_package(tmp_path, "py-some", "1.0", files=files)
    wheel = make_wheel(tmp_path, "some_name", "2.0", files={"some/__init__.py": "2"})
    packages = [condapackage.fetched(conda), fetched(wheel)]
    warnings = Warnings()
    made = files_of(packages, settings)
    made.work = Workspace(settings, made.work.store, warnings)
    left_out = made.resolution.leave_out[packages[0].package.key]
    assert left_out == {posixpath.normpath(f"opt/conda/{site}/{row}") for row in rows}
    assert warnings.messages == ["a wheel replaces py-some 1.0 of conda"]
