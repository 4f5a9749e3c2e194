"""Values of recipes that have their own syntax."""

from __future__ import annotations

import pytest

from builder.lock.config.fields import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5:30", 330),
        ("1:00:00", 3600),
        ("2-0", 172800),
        ("1-00:00:01", 86401),
    ],
)
def test_seconds(text: str, expected: int) -> None:
    """Times have the meaning that Slurm gives them."""
    assert seconds(text) == expected
