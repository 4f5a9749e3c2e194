"""References to base images."""

from __future__ import annotations

import pytest

from builder.bases.reference import split_reference
from builder.errors import ConfigError


def test_split_reference() -> None:
    """A reference is split into its kind and the rest."""
    assert split_reference("docker://debian:bookworm") == ("docker", "debian:bookworm")
    assert split_reference("oci:dir:tag") == ("oci", "dir:tag")


def test_nothing_after_the_kind() -> None:
    """A kind alone is not a reference."""
    with pytest.raises(ConfigError, match="base 'sif:' is not a reference") as e:
        split_reference("sif:")
    assert "sif:FILE" in e.value.hint
