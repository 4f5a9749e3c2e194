"""Environment markers are those of the target and not of this machine."""

from __future__ import annotations

import pytest
from packaging.markers import default_environment

from builder.core.markers import marker_environment, unfulfilled


def test_complete() -> None:
    """What is missing would be taken from this machine."""
    assert marker_environment("linux-64", "3.11.2").keys() == default_environment().keys()


def test_free_threaded() -> None:
    """Markers know nothing of the GIL."""
    assert marker_environment("linux-64", "3.13.1t") == marker_environment("linux-64", "3.13.1")


VERSIONS = {"python": "3.11.2", "setuptools": "80.9.0", "torch": "2.9.0+cu126", "odd": "2024a_1"}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("setuptools", True),
        ("SetupTools>=61", True),
        ("setuptools<70", False),
        ("torch==2.9.0", True),
        ("torch>=2.9.1", False),
        ("numpy", False),
        ("numpy; python_version < '3.11'", True),
        ("numpy; extra == 'dev'", True),
        ("odd>=3", True),
    ],
)
def test_unfulfilled(requirement: str, expected: bool) -> None:
    """A version that only conda can read fulfils everything; markers are those of the target."""
    found = unfulfilled([requirement, "setuptools"], VERSIONS, "linux-64")
    assert found == ([] if expected else [requirement])
