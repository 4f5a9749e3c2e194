"""Conda specs of environment files."""

from __future__ import annotations

import pytest

from builder.core.errors import ConfigError
from builder.lock.condaspec import conda_spec_hint, conda_spec_name, parsed_spec
from builder.lock.spec import Spec


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
        ("conda-forge[subdir=linux-64]::a", "write NAME"),
        (
            "https://h.example/c/linux-64/a-1.0-0.conda#0123",
            "https://HOST/CHANNEL/SUBDIR::NAME=VERSION=BUILD",
        ),
        ("bioconda:bcftools=1.20", "for the channel write 'bioconda::bcftools=1.20'"),
        ("uvicorn[standard] >=0.12", "this is for pip"),
        ("c::sqlalchemy [asyncio]<2", "this is for pip"),
    ],
)
def test_no_spec(text: str, hint: str) -> None:
    assert conda_spec_name(text) == "" and hint in conda_spec_hint(text)


#: A spec, the channel that conda takes from it, and the rest as rattler's canonical text.
PARSED = [
    ("lib", "", "lib"),
    ("Lib=1.0", "", 'lib[version="1.0.*"]'),
    ("lib 1.0", "", 'lib[version="==1.0"]'),
    ("lib=1.0=py*", "", 'lib[version="==1.0",build="py*"]'),
    ("lib=1.0=py3.9*", "", 'lib[version="==1.0",build="py3.9*"]'),
    ("lib >= 1, < 2", "", 'lib[version=">=1,<2"]'),
    ("lib>=1,<2|3", "", 'lib[version=">=1,<2|==3"]'),
    ("lib==1|2", "", 'lib[version="==1|==2"]'),
    ("lib 2.7*|>=3.6", "", 'lib[version="2.7.*|>=3.6"]'),
    ("lib ~=1.2 *cuda*", "", 'lib[version="~=1.2",build="*cuda*"]'),
    ('lib[version=">=1", build=x]', "", 'lib[version=">=1",build="x"]'),
    ('lib[build="^.*cuda.*$"]', "", 'lib[build="^.*cuda.*$"]'),
    ("lib[build_number=1]", "", 'lib[build_number="==1"]'),
    (f"lib[md5={'a' * 32}]", "", f'lib[md5="{"a" * 32}"]'),
    ("lib[track_features=x]", "", 'lib[track_features="x"]'),
    ('lib[when="python>=3.10"]', "", 'lib[when="python>=3.10"]'),
    ("forge::lib=1", "forge", 'lib[version="1.*"]'),
    ("forge/label/dev::lib", "forge/label/dev", "lib"),
    ("forge/linux-64::lib==2.3.1=py_0", "forge", 'lib[version="==2.3.1",build="py_0",subdir="linux-64"]'),
    ("forge/noarch::lib", "forge", 'lib[subdir="noarch"]'),
    ("https://h.example/$T/c/linux-64::lib", "https://h.example/$T/c", 'lib[subdir="linux-64"]'),
    ("https://h.example/team-linux-64::lib", "https://h.example/team-linux-64", "lib"),
    ("lib[channel=forge,subdir=noarch]", "forge", 'lib[subdir="noarch"]'),
    ('lib[version=">=1",channel="https://h.example/c"]', "https://h.example/c/", 'lib[version=">=1"]'),
    ("defaults::lib[channel=forge]", "forge", "lib"),
    ("*::lib", "", "lib"),
    ("*/linux-64::lib", "", 'lib[subdir="linux-64"]'),
]


@pytest.mark.parametrize(("text", "channel", "rest"), PARSED)
def test_parsed(text: str, channel: str, rest: str) -> None:
    """Nothing that conda reads is lost, and rattler reads the same text as builder does."""
    from rattler import MatchSpec

    found, parsed = parsed_spec(Spec(text, conda_spec_name(text), "e.yml:3"))
    assert (found, parsed.to_canonical_string()) == (channel, rest)
    if not channel and "*" not in text.partition("lib")[0]:
        assert MatchSpec(text).to_canonical_string() == rest
    assert parsed.name.normalized == conda_spec_name(text) == "lib"


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("lib *.0", 'build=".0"'),
        ("lib *.0.*", 'build=".0.*"'),
        ("lib 1.*.0", "regex constraints are not supported"),
        ("lib >=1 <2", 'build="<2"'),
        ("lib 1.0 1.2", 'build="1.2"'),
        ("lib 1.0;", 'build=";"'),
        ("lib 1.0 py_0 more", 'build="py_0 more"'),
        ("lib ; python_version<'3'", "unable to parse version spec"),
        ("lib[fn=lib-1.0-0.conda]", 'fn="lib-1.0-0.conda"'),
        ("lib[url=https://h.example/c/noarch/lib-1.0-0.conda]", "url="),
        ("lib[features=x]", "invalid bracket key"),
        ("lib[version=1.0][build=x]", "invalid package name"),
    ],
)
def test_unread(text: str, unread: str) -> None:
    """What conda reads and the solver would drop, or take for something else, is refused by name."""
    with pytest.raises(ConfigError) as error:
        parsed_spec(Spec(text, "lib", "e.yml:3"))
    assert error.value.message.startswith(f"e.yml:3: {text!r} is not a conda spec: ")
    assert unread in error.value.message and "NAME>=VERSION,<VERSION" in error.value.hint
