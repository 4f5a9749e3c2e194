"""Conda specs as conda reads them."""

from __future__ import annotations

import pytest

from builder.lock.condaspec import SpecChannel, read_conda_spec, split_channel


@pytest.mark.parametrize(
    ("text", "read", "note"),
    [
        ("Lume-Model>=2.0.1", "Lume-Model>=2.0.1", ""),
        ("numpy  1.26.*   py311_0", "numpy 1.26.* py311_0", ""),
        ('numpy[version=">=1.2"]', 'numpy[version=">=1.2"]', ""),
        ("bioconda::samtools=1.20", "bioconda::samtools=1.20", ""),
        ("conda-forge/linux-64::zlib", "conda-forge/linux-64::zlib", ""),
        ("https://host.example:8443/c::zlib >=1", "https://host.example:8443/c::zlib >=1", ""),
        ("bioconda:bcftools=1.20", "bcftools=1.20", "for the channel write 'bioconda::bcftools=1.20'"),
        ("uvicorn[standard] >=0.12", "uvicorn >=0.12", "conda ignores [standard]"),
        ("c::sqlalchemy[asyncio]<2", "c::sqlalchemy<2", "'sqlalchemy[asyncio]' below the item '- pip:'"),
    ],
)
def test_read(text: str, read: str, note: str) -> None:
    spec = read_conda_spec(text)
    assert spec is not None and spec.text == read
    assert bool(spec.notes) == bool(note) and note in " ".join(spec.notes)


@pytest.mark.parametrize(
    "text",
    [
        "3.11",
        "a=>1",
        ">=1",
        "~x",
        "a=>1.2,<2",
        "a >=1,=<2",
        "a > =1",
        "pip install a",
        "git+https://h.example/a",
    ],
)
def test_no_spec(text: str) -> None:
    assert read_conda_spec(text) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("zlib >=1", None),
        ("c/linux-64::zlib", SpecChannel("c", "linux-64", "zlib")),
        ("https://h.example/c/noarch::zlib", SpecChannel("https://h.example/c", "noarch", "zlib")),
    ],
)
def test_channel(text: str, part: SpecChannel | None) -> None:
    assert split_channel(text) == part
