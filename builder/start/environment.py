"""The environment file of a new project."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from builder.channel.contents import PYTHON as DEBIAN_PYTHON
from builder.start.requirements import Requirements
from builder.start.text import yaml_line
from builder.text import one_line

#: Versions of Python to choose from, the first that fits.
_PYTHONS = ("3.12", "3.13", "3.11", "3.10", "3.14", "3.9")

_MINIMAL = """\
# The packages of the image. A change takes effect after: builder lock
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python={python}
  # - numpy              # packages of the channel: NAME, NAME>=VERSION or NAME=VERSION=BUILD
  - pip:
      # - polars         # packages of PyPI: NAME, NAME==VERSION
"""


def minimal_environment(python: str) -> str:
    """An environment file of one package, with comments that show how to go on."""
    return _MINIMAL.format(python=python)


def environment_text(found: Requirements, python: str, root: Path | None = None) -> str:
    """An environment file for what a project requires.

    Args:
        found: channels, packages and options. What was left out becomes comments.
        python: the version of Python (``3.11``), unless the conda packages have one.
        root: the folder of the environment file; None: that of the file that was read.
    """
    origin = os.path.relpath(found.origin, root or found.origin.parent)
    return "\n".join(_lines(found, python, origin)) + "\n"


def _lines(found: Requirements, python: str, origin: str) -> Iterator[str]:
    advice = "it reads that file" if found.is_file else "from now on edit this file"
    yield f"# Written by builder init from {one_line(origin)}; {advice}."
    yield "channels:"
    for channel in found.channels or ["conda-forge"]:
        yield f"  - {yaml_line(channel)}"
    yield "  - nodefaults"
    yield "dependencies:"
    names = {spec.split("::")[-1].split()[0].lower() for spec in found.conda}
    if "python" not in names:
        wanted = f"  # requires-python: {one_line(found.python)}" if found.python else ""
        yield f"  - python={python}{wanted}"
    for spec in found.conda:
        yield f"  - {yaml_line(spec)}"
    pip = [f"-r {shlex.quote(origin)}"] if found.is_file else [*found.options, *found.pip]
    if found.pip:
        yield "  - pip:"
        yield from (f"      - {yaml_line(item)}" for item in pip)
    for item, why in found.left_out:
        yield f"  # left out: {one_line(item)}  ({one_line(why)})"


def choose_python(specifier: str, pinned: str, *, debian: bool) -> str:
    """The minor version of Python for an environment.

    Args:
        specifier: of ``requires-python``; empty: any version.
        pinned: the content of ``.python-version``; empty: no such file.
        debian: whether the packages come from the Debian channel.
    """
    numbers = pinned.strip().removeprefix("cpython-").split(".")
    if len(numbers) >= 2 and all(number.isdigit() for number in numbers[:2]):
        return ".".join(numbers[:2])
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier:
        allowed = SpecifierSet()
    candidates = [DEBIAN_PYTHON if debian else own, *_PYTHONS]
    # ">=3.11.2" allows a later release of 3.11
    return next((version for version in candidates if f"{version}.99" in allowed), candidates[0])
