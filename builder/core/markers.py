"""The values of environment markers (PEP 508) for a target, and what fulfils its requirements."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterable, Mapping

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from .datafiles import table

#: conda's platforms, and the names of their processors in markers and in the tags of wheels.
ARCHITECTURES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
#: The versions of Python for which a marker may be true: the minor ones, and patch releases.
_MINORS, PATCHES = range(8, 20), range(100)


def marker_environment(platform: str, python: str) -> dict[str, str]:
    """Return the values of environment markers (PEP 508) for the target's Python.

    They are the same for a free-threaded one, ``3.13.1t``.
    """
    numbers = re.findall(r"\d+", python)
    minor = ".".join(numbers[:2])
    full = python.rstrip("t") if len(numbers) > 2 else f"{minor}.0"
    return {
        **table(__file__, "markers.yaml"),
        "implementation_version": full,
        "platform_machine": ARCHITECTURES[platform],
        "python_full_version": full,
        "python_version": minor,
    }


def applies(marker: Marker | str | None, platform: str, python: str) -> bool:
    """Return whether a requirement with this marker is for the target's Python."""
    return not marker or Marker(str(marker)).evaluate(marker_environment(platform, python))


@functools.cache
def answers(marker: Marker | None, platform: str) -> frozenset[bool]:
    """Return whether a marker is true and whether it is false for some version of Python 3."""
    patches = PATCHES if "full_version" in str(marker) else PATCHES[:1]
    pythons = (f"3.{minor}.{patch}" for minor in _MINORS for patch in patches)
    return frozenset(applies(marker, platform, python) for python in pythons)


def with_extras(name: str, extras: Collection[str]) -> str:
    """Return ``NAME[EXTRA,...]``, sorted; the name if there are no extras."""
    return f"{name}[{','.join(sorted(extras))}]" if extras else name


def unfulfilled(requires: Iterable[str], versions: Mapping[str, str], platform: str) -> list[str]:
    """Return the requirements that packages do not fulfil.

    Args:
        requires: those without a marker, or whose marker is true, count.
        versions: of the packages, by normalised name; one that only conda knows fulfils all.
        platform: of the packages.
    """

    def is_fulfilled(required: Requirement) -> bool:
        if not applies(required.marker, platform, versions.get("python", "3")):
            return True
        version = versions.get(canonicalize_name(required.name))
        with contextlib.suppress(InvalidVersion):
            return version is not None and required.specifier.contains(version, prereleases=True)
        return True

    return [text for text in requires if not is_fulfilled(Requirement(text))]
