"""Conda specs of environment files."""

from __future__ import annotations

import pytest

from builder.lock.condaspec import conda_spec_hint, conda_spec_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Lume-Model>=2.0.1", "lume-model"),
        ("numpy 1.26.* py311_0", "numpy"),
        ('numpy[version=">=1.2"]', "numpy"),
        ("bioconda::samtools=1.20", "samtools"),
        ("pkgs/main::zlib", "zlib"),
        ("https://host.example:8443/c::zlib >=1", "zlib"),
    ],
)
def test_name(text: str, name: str) -> None:
    assert conda_spec_name(text) == name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("3.11", "write NAME"),
        ("a=>1", "write NAME"),
        ("pip install a", "write NAME"),
        ("git+https://h.example/a", "below the item '- pip:'"),
        ("bioconda:bcftools=1.20", "for the channel write 'bioconda::bcftools=1.20'"),
        ("uvicorn[standard] >=0.12", "this is for pip"),
        ("c::sqlalchemy [asyncio]<2", "this is for pip"),
    ],
)
def test_no_spec(text: str, hint: str) -> None:
    assert conda_spec_name(text) == "" and hint in conda_spec_hint(text)
