"""The user namespace of root's mmdebstrap for another processor."""

from __future__ import annotations

import pytest

from builder.bases.namespace import identity_map


@pytest.mark.parametrize(
    ("own", "new"),
    [
        ("         0          0 4294967295\n", "0 0 4294967295\n"),
        ("0 1000 1\n1 200000 65536\n", "0 0 1\n1 1 65536\n"),
    ],
)
def test_identity_map(own: str, new: str) -> None:
    """The ids are those of the namespace around it, which may have a map, too (a rootless container)."""
    assert identity_map(own) == new
