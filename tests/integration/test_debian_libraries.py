"""The names of Debian's library packages, compared with the package lists of its releases."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.build.bases import debian_libraries
from builder.build.bases.debian_libraries import debian_package
from tests.support.debs import apt_of
from tests.support.parts import need
from tests.unit.build.bases.test_debian_libraries import BOOKWORM

pytestmark = [pytest.mark.heavy, pytest.mark.network]
#: The releases, as a base of each names itself (os-release(5)).
RELEASES = {"bookworm": "12", "trixie": "13", "sid": "forky"}
#: Libraries whose name has the version of a release.
_OF_ONE_RELEASE = r"libgeos\.so\..*|libssl\.so\.3|libcrypto\.so\.3"


def rows() -> Iterator[str]:
    """The libraries of the table, and those of the rule that tests name."""
    text = Path(debian_libraries.__file__).with_name("debian_libraries.txt").read_text()
    found = re.findall(r"(?m)\S+\.so\.[\d.]+", re.sub(r"(?m)^#.*", "", text))
    yield from dict.fromkeys([*found, *BOOKWORM])


@pytest.mark.parametrize("suite", RELEASES)
def test_names(tmp_path: Path, suite: str) -> None:
    """apt installs each package under builder's name; a library without one is in no package of the release.

    On 2026-11-29: ``libasound2`` is provided by two packages of sid, so apt refuses the name, while other
    names from before the 64-bit ``time_t`` (``libglib2.0-0``) are accepted; libopenmpi3 became libopenmpi40.
    """
    need("apt-get")
    named = {library: debian_package(library, "debian", RELEASES[suite]) for library in rows()}
    known = {name for library, name in named.items() if name and not re.fullmatch(_OF_ONE_RELEASE, library)}
    assert len(known) > 50
    command = [*apt_of(tmp_path, [suite]), "install", "--simulate", "--no-install-recommends", *sorted(known)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    if suite != "bookworm":  # the names of bookworm would be refused
        command[-len(known) :] = ["libopenmpi3"]
        assert subprocess.run(command, capture_output=True).returncode == 100
