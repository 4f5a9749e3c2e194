"""pip's configuration and netrc with everything wrong: a BuilderError, or it is read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import BuilderError
from builder.net.http import _Credentials
from builder.net.pipconfig import pip_configuration
from tests.support.fuzz import Sample, fuzz

PIP = b"[global]\nindex-url = https://u:p@h/simple\nfind-links =\n  a\n  b\n[install]\nno-index = %(x)s\n"
NETRC = b"machine h login u password p\ndefault login a account b\nmacdef x\n y\n\nmachine i\n"


def forms(data: bytes) -> st.SearchStrategy[bytes]:
    pieces = [
        b"[",
        b"]",
        b"=",
        b"\n",
        b" ",
        b"%",
        b"global",
        b"machine ",
        b"password ",
        b'"',
        b"\\",
        b"\0",
        b"\xff",
    ]
    return Sample(data).damaged() | st.lists(st.sampled_from(pieces), max_size=20).map(b"".join)


@fuzz(100)
@given(forms(PIP))
def test_pip(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "pip.conf").write_bytes(data)
    with contextlib.suppress(BuilderError):
        pip_configuration({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)})


@fuzz(60)
@given(forms(NETRC))
def test_netrc(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "netrc").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(BuilderError):
        patch.setenv("NETRC", str(tmp_path / "netrc"))
        _Credentials()
