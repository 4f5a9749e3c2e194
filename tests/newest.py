"""Runs the tests with what is newest today, to find surprises before users do.

``python -m tests.newest PACKAGE... ARGUMENTS``, by ``make newest`` with the Debian packages of ``make test``:
the unit tests and the integration tests that are not heavy (or those that the arguments of pytest name), with
Debian sid's Python and programs, and the newest versions of builder's dependencies. Those that pyproject.toml
pins, since their output is part of digests, stay pinned. The machine is that of
:mod:`tests.support.freshmachine`, with the tree of :mod:`benchmarks.suite`.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from benchmarks.suite import make_tree
from builder.formats.net.apt import apt_sources
from tests.support.freshmachine import FreshMachine
from tests.support.parts import CLONE, need, need_root

TREE = CLONE / ".cache/newest/sid"
#: What every run needs besides the packages of ``make test``.
_PACKAGES = ("git", "make", "python3", "python3-venv")
_INSTALL = "newest/bin/pip install --quiet --disable-pip-version-check"
#: Programs whose versions are printed.
_PROGRAMS = ("docker.io", "mmdebstrap", "podman", "skopeo", "slurm-wlm", "squashfs-tools", "umoci")
#: Lines of a shell, in the home of the tree's root; ``{newest}`` is replaced by requirements.
_COMMANDS = (
    "python3 -m venv --clear newest",
    f"{_INSTALL} {{newest}}",
    f"{_INSTALL} --no-deps --no-build-isolation --editable builder",
    "newest/bin/python --version && dpkg-query --show {programs}",
    "sed 's/ .*//; s/_/-/g' builder/requirements/dev.txt >known",
    "newest/bin/pip list --format freeze | sed 's/_/-/g' | grep -vixFf known",
    "cd builder && ../newest/bin/python -m pytest -n 2 --dist loadfile -m 'not heavy' {arguments}",
)


def main(packages: list[str], arguments: str) -> int:
    """Runs the tests; returns their exit code.

    Args:
        packages: names of Debian packages.
        arguments: of pytest.
    """
    need_root()
    need("mmdebstrap", "unshare", "pivot_root")
    make_tree(TREE, sorted({*packages, *_PACKAGES}))
    machine = FreshMachine(TREE)
    clone = TREE / "root/builder"
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", CLONE, clone], check=True)
    for settings in (TREE / "etc/apt/apt.conf.d").glob("*mmdebstrap"):
        settings.unlink()  # of the download
    # bases are made as on a machine that names the mirrors of both suites
    (TREE / "etc/apt/sources.list.d/bookworm.sources").write_text(apt_sources("bookworm"))
    words = {
        "newest": shlex.join(_newest()),
        "programs": shlex.join(_PROGRAMS),
        "arguments": arguments,
    }
    for command in _COMMANDS:
        script = command.format(**words)
        print(f"$ {script}", flush=True)
        if code := machine.show(script, root=True):
            return code
    return 0


def _newest() -> Iterator[str]:
    """The requirements of builder and its tests, without bounds; those that are pinned stay."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    for line in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        requirement = Requirement(line)
        if "==" not in str(requirement.specifier):
            requirement.specifier = SpecifierSet()
        yield str(requirement)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:-1], sys.argv[-1]))
