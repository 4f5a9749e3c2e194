"""Public archives, this machine's mirrors of them, and snapshots."""

from __future__ import annotations

from pathlib import Path

from builder.formats.net.debarchives import host_mirrors, mirrored_archive, public_archive, snapshot

DEBIAN = "http://deb.debian.org/debian"
FILE = "/pool/main/h/hello/hello_2.10-3_amd64.deb"
SOURCES = """\
Types: deb
URIs: http://robot:secret@mirror.example/deb/
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.example/sec
Suites: bookworm-security
Components: main

Types: deb
URIs: https://tool.example
Suites: stable
Components: main
"""


def mirrors(folder: Path, text: str, release: str) -> tuple[tuple[str, str], ...]:
    (folder / "apt/sources.list.d").mkdir(parents=True)
    (folder / "apt/sources.list.d/own.sources").write_text(text)
    (folder / "os-release").write_text(release)
    return host_mirrors(folder / "apt", folder / "os-release")


def test_mirrors_of_the_host(tmp_path: Path) -> None:
    """A mirror in apt's sources stands for the public archive; the way back has no credentials."""
    found = mirrors(tmp_path, SOURCES, "ID=debian\nVERSION_CODENAME=bookworm\n")
    own = mirrored_archive(DEBIAN + FILE, found)
    assert own == "http://robot:secret@mirror.example/deb" + FILE
    assert public_archive(own, found) == DEBIAN + FILE
    assert public_archive(f"http://mirror.example/deb{FILE}", found) == DEBIAN + FILE
    security = "http://security.debian.org/debian-security"
    assert mirrored_archive(f"{security}{FILE}", found) == f"http://mirror.example/sec{FILE}"
    other = "https://tool.example/pool/x.deb"
    assert mirrored_archive(other, found) == public_archive(other, found) == other


def test_snapshots() -> None:
    """The snapshot services have the files of an archive as of a time; other archives have none."""
    time = 1_763_769_600  # 2025-11-22
    assert snapshot(DEBIAN + FILE, time) == (
        f"https://snapshot.debian.org/archive/debian/20251122T000000Z{FILE}"
    )
    assert snapshot(f"https://archive.ubuntu.com/ubuntu{FILE}", time) == (
        f"https://snapshot.ubuntu.com/ubuntu/20251122T000000Z{FILE}"
    )
    assert snapshot(f"https://developer.example/cuda{FILE}", time) is None
