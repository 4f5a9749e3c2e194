"""Environment markers are those of the target and not of this machine."""

from __future__ import annotations

from packaging.markers import default_environment

from builder.lock.markers import marker_environment


def test_complete() -> None:
    """What is missing would be taken from this machine."""
    assert marker_environment("linux-64", "3.11.2").keys() == default_environment().keys()
