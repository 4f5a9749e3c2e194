"""The Debian package sources of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.formats.net.apt import apt_sources


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    folder = tmp_path / "apt"
    (folder / "sources.list.d").mkdir(parents=True)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    return folder


def sources(apt: Path, suite: str = "bookworm") -> str:
    return apt_sources(suite, apt, apt.parent / "os-release")


def test_deb822_sources(apt: Path) -> None:
    """deb822 files: only enabled binary sources of the suite stay, with their keys."""
    (apt / "sources.list.d/debian.sources").write_text(
        "# a comment\nTypes: deb deb-src\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm bookworm-updates bookworm-backports\n"
        "Components: main contrib\nArchitectures: amd64 i386\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n"
        " abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        "\n\nTypes: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
        "\nTypes: deb\nURIs: http://tool.example\nSuites: stable\nComponents: main\n"
        "\nTypes: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n"
        "\nTypes: deb-src\nURIs: http://source.example\nSuites: bookworm\nComponents: main\n"
    )
    assert sources(apt) == (
        "Types: deb\nURIs: http://mirror.example/debian\n"
        "Suites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        "\nTypes: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
    )


def test_one_line_sources(apt: Path) -> None:
    """One-line files are read, with their options."""
    (apt / "sources.list").write_text(
        "deb [arch=amd64,arm64 signed-by=/k.gpg check-valid-until=no] "
        "http://mirror.example/debian bookworm main contrib # ours\n"
        "deb-src http://mirror.example/debian bookworm main\n#deb http://old.example bookworm main\n"
        "deb http://x.example bookworm stable\n"
    )
    assert sources(apt) == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
        "Signed-By: /k.gpg\n"
        "Check-Valid-Until: no\n"
    )


def test_other_suite(apt: Path) -> None:
    """On a Debian machine of another suite the same mirror serves the wanted one."""
    (apt / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main\n"
        "deb http://mirror.example/security bookworm-security main\n"
    )
    assert "Suites: trixie\n" in sources(apt, "trixie") and "Suites: trixie-security\n" in sources(
        apt, "trixie"
    )
    (apt.parent / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=bookworm\n")
    with pytest.raises(ImageError, match="name no mirror for Debian trixie"):
        sources(apt, "trixie")


def test_sid(apt: Path) -> None:
    """Debian sid has neither updates nor a security suite, whose Release files apt would look for."""
    (apt / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main\n"
        "deb http://mirror.example/debian bookworm-updates main\n"
        "deb http://mirror.example/security bookworm-security main\n"
    )
    assert (
        sources(apt, "sid")
        == "Types: deb\nURIs: http://mirror.example/debian\nSuites: sid\nComponents: main\n"
    )


def test_no_sources(apt: Path) -> None:
    """A machine without a Debian mirror is an error."""
    with pytest.raises(ImageError, match="name no mirror for Debian bookworm") as caught:
        sources(apt)
    assert "docker://" in caught.value.hint
