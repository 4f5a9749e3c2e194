"""What builder tells people to install exists: names, extras and wheels, on the real index (make audit)."""

from __future__ import annotations

import re
import subprocess

import pytest
import uv

from builder.bench.probes import framework
from builder.core.datafiles import table
from builder.formats.net.pipconfig import PYPI, pip_configuration
from builder.lock import indexes

pytestmark = pytest.mark.network
#: pip's packages of the smoke test's advice, with their extras.
NAMED = re.findall(r"pip's ([\w-]+(?:\[[\w,-]+\])?)", "\n".join(framework._BUILDS.values()))


#: Lines for a version of CUDA that need no other index.
ROWS = table(indexes.__file__, "cuda.yaml")
CUDA = [(line, version) for version, rows in ROWS.items() for line in rows.values() if " " not in line]


def compiled(named: str) -> str:
    """Returns the wheels that uv takes for a requirement, one in each line. No extra of it is unknown."""
    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "-",
        "--no-config",
        "--no-header",
        "--only-binary",
        ":all:",
    ]
    command += ["--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--default-index", pip_configuration().index_url or PYPI]
    done = subprocess.run(command, input=named, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "does not have an extra" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("named", NAMED)
def test_named(named: str) -> None:
    """The newest Python that most packages support has a wheel of it."""
    assert re.match(r"[\w-]+", named)[0] in compiled(named)


@pytest.mark.parametrize(("line", "version"), CUDA)
def test_line_for_cuda(line: str, version: int) -> None:
    """The libraries are for that version, and the one for the other version is not advised against itself."""
    wheels = compiled(line).replace("==", " ").splitlines()
    found = list(filter(None, map(indexes._LIBRARY.fullmatch, wheels)))
    assert {int(one[2] or one[3]) for one in found} == {version}
    assert not [pattern for pattern in ROWS[version] if any(re.match(pattern, wheel) for wheel in wheels)]


def test_advice_names_packages() -> None:
    assert {"jax[rocm7-local]", "jax[cuda12]", "tensorflow[and-cuda]"} <= set(NAMED)
