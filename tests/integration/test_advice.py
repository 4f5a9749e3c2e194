"""What builder tells people to install exists: names, extras and wheels, on the real index (make audit)."""

from __future__ import annotations

import re
import subprocess

import pytest
import uv

from builder.bench.probes import framework
from builder.formats.net.pipconfig import PYPI, pip_configuration

pytestmark = pytest.mark.network
#: pip's packages of the smoke test's advice, with their extras.
NAMED = re.findall(r"pip's ([\w-]+(?:\[[\w,-]+\])?)", "\n".join(framework._BUILDS.values()))


@pytest.mark.parametrize("named", NAMED)
def test_named(named: str) -> None:
    """The newest Python that most packages support has a wheel of it, and no extra is unknown."""
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


def test_advice_names_packages() -> None:
    assert {"jax[rocm7-local]", "jax[cuda12]", "tensorflow[and-cuda]"} <= set(NAMED)
