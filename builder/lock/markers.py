"""The values of environment markers (PEP 508) for a target: ``sys_platform == "linux"``."""

from __future__ import annotations

import re

from packaging.markers import Marker

#: conda's platforms, and the names of their processors in markers and in the tags of wheels.
ARCHITECTURES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


def marker_environment(platform: str, python: str) -> dict[str, str]:
    """Return the values of environment markers (PEP 508) for the target's Python."""
    numbers = re.findall(r"\d+", python)
    minor = ".".join(numbers[:2])
    full = python if len(numbers) > 2 else f"{minor}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": ARCHITECTURES[platform],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": minor,
        "sys_platform": "linux",
    }


def applies(marker: Marker | str | None, platform: str, python: str) -> bool:
    """Return whether a requirement with this marker is for the target's Python."""
    return not marker or Marker(str(marker)).evaluate(marker_environment(platform, python))
