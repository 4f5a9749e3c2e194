"""Environment markers are those of the target and not of this machine."""

from __future__ import annotations

import pytest
from packaging.markers import Marker, default_environment

from builder.lock.markers import marker_environment


def test_complete() -> None:
    """What is missing would be taken from this machine."""
    assert marker_environment("linux-64", "3.11.2").keys() == default_environment().keys()


@pytest.mark.parametrize(
    ("platform", "python", "marker"),
    [
        ("linux-aarch64", "3.12.4", "platform_machine == 'aarch64' and python_full_version == '3.12.4'"),
        ("linux-64", "3.11", "python_version == '3.11' and python_full_version == '3.11.0'"),
    ],
)
def test_values(platform: str, python: str, marker: str) -> None:
    assert Marker(marker).evaluate(marker_environment(platform, python))
