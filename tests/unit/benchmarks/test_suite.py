"""The tree of current programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suite import source_line

_DEBIAN = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
_UBUNTU = "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: noble\nComponents: main\n"


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [(_DEBIAN, "http://mirror.example/debian"), (_UBUNTU, "http://deb.debian.org/debian")],
)
def test_source(tmp_path: Path, sources: str, mirror: str) -> None:
    """The tree comes from this machine's mirror of Debian; Ubuntu has none, and uses Debian's."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/some.sources").write_text(sources)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    assert source_line(tmp_path) == f"deb [signed-by={keyring}] {mirror} sid main"
