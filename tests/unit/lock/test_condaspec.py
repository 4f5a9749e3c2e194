"""Conda specs as conda reads them."""

from __future__ import annotations

import pytest

from builder.lock.condaspec import SpecChannel, read_conda_spec, split_channel


@pytest.mark.parametrize(
    ("text", "read", "note"),
    [
        ("numpy", "numpy", ""),
        ("Lume-Model>=2.0.1", "Lume-Model>=2.0.1", ""),
        ("numpy  1.26.*   py311_0", "numpy 1.26.* py311_0", ""),
        ('numpy[version=">=1.2"]', 'numpy[version=">=1.2"]', ""),
        ("numpy[version='1.26.*',build=py311*]", "numpy[version='1.26.*',build=py311*]", ""),
        ("bioconda::samtools=1.20", "bioconda::samtools=1.20", ""),
        ("conda-forge/linux-64::zlib", "conda-forge/linux-64::zlib", ""),
        ("https://host.example:8443/c::zlib >=1", "https://host.example:8443/c::zlib >=1", ""),
        ("bioconda:bcftools=1.20", "bcftools=1.20", "for the channel write 'bioconda::bcftools=1.20'"),
        ("a:ns:zlib", "a::zlib", "conda ignores 'ns'"),
        ("uvicorn[standard] >=0.12", "uvicorn >=0.12", "conda ignores [standard]"),
        ("c::sqlalchemy[asyncio]<2", "c::sqlalchemy<2", "'sqlalchemy[asyncio]' below the item '- pip:'"),
        ("constructor=>3.1", "constructor>=3.1", "as 'constructor>=3.1'"),
        ("constructor =<3.1", "constructor<3.1", "as 'constructor<3.1'"),
        ("constructor==>3.1", "constructor>3.1", "as 'constructor>3.1'"),
    ],
)
def test_read(text: str, read: str, note: str) -> None:
    spec = read_conda_spec(text)
    assert spec is not None and spec.text == read
    assert bool(spec.notes) == bool(note) and note in " ".join(spec.notes)


@pytest.mark.parametrize(
    "text",
    ["3.11", ">=1", "~x", "a=>1.2,<2", "a >=1,=<2", "a > =1", "pip install a", "git+https://h.example/a"],
)
def test_no_spec(text: str) -> None:
    assert read_conda_spec(text) is None


@pytest.mark.parametrize(
    "text",
    ["constructor=>3.1", "constructor=<3.1", "constructor==>3.1", "uvicorn[standard] >=0.12", "b:a=1.20"],
)
def test_as_conda(text: str) -> None:
    """conda's own parser, in conda-lock, selects the same versions."""
    from conda_lock._vendor.conda.models.match_spec import MatchSpec as CondaMatchSpec
    from rattler import MatchSpec, Version, VersionSpec

    spec = read_conda_spec(text)
    assert spec is not None
    ours, theirs = MatchSpec(spec.text), CondaMatchSpec(text)
    assert theirs.name == spec.name
    versions = ("0.11", "0.12", "1.2", "1.20", "1.20.1", "3.0", "3.1", "3.1.1", "3.2", "4")
    read = VersionSpec(str(ours.version))
    assert [v for v in versions if read.matches(Version(v))] == [
        v for v in versions if theirs.version.match(v)
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("zlib >=1", None),
        ("c::zlib >=1", SpecChannel("c", "", "zlib >=1")),
        ("c/linux-64::zlib", SpecChannel("c", "linux-64", "zlib")),
        ("pkgs/main::zlib", SpecChannel("pkgs/main", "", "zlib")),
        ("https://h.example/c/noarch::zlib", SpecChannel("https://h.example/c", "noarch", "zlib")),
    ],
)
def test_channel(text: str, part: SpecChannel | None) -> None:
    assert split_channel(text) == part
