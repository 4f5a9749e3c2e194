"""mmdebstrap: who can run it, and its failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.bases import debian, mmdebstrap
from builder.bases.mmdebstrap import DebianBase, mmdebstrap_error
from builder.bases.resolve import resolve_base
from builder.errors import ImageError
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.image_kit import settings


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def given(tmp_path: Path) -> Settings:
    return settings(tmp_path)


BASE = DebianBase("debian:bookworm", "bookworm", ("ca-certificates",), "amd64", sources="")


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        debian,
        "apt_sources",
        lambda suite: "Types: deb\nURIs: file:///nowhere\nSuites: bookworm\nComponents: main\n",
    )
    monkeypatch.setattr(debian, "mirror_state", lambda *a: None)


def test_not_installed(
    store: Store, given: Settings, no_mirror: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without mmdebstrap the hint says how to install it."""
    monkeypatch.setattr(mmdebstrap.shutil, "which", lambda name: None)
    with pytest.raises(ImageError, match="mmdebstrap is not installed") as caught:
        resolve_base("debian:bookworm", "amd64", given, store)
    assert "apt-get install mmdebstrap" in caught.value.hint


@pytest.mark.parametrize(
    ("which", "message", "hint"),
    [
        (("mmdebstrap",), "needs newuidmap", "apt-get install uidmap"),
        (("mmdebstrap", "newuidmap", "newgidmap"), "no range of ids in /etc/subuid", "usermod --add-subuids"),
    ],
)
def test_ordinary_user_who_cannot(
    which: tuple[str, ...],
    message: str,
    hint: str,
    store: Store,
    given: Settings,
    no_mirror: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ordinary user learns which program or range of ids is missing."""
    monkeypatch.setattr(
        mmdebstrap.shutil, "which", lambda name: f"/usr/bin/{name}" if name in which else None
    )
    monkeypatch.setattr(mmdebstrap.os, "geteuid", lambda: 987654)
    monkeypatch.setattr(mmdebstrap.getpass, "getuser", lambda: "nobody-like-this")
    with pytest.raises(ImageError, match=message) as caught:
        resolve_base("debian:bookworm", "amd64", given, store)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("log", "message", "hint"),
    [
        (
            "I: running\nE: Unable to locate package no-such-package\nE: setup failed",
            "has no package no-such-package",
            "base_packages",
        ),
        (
            "E: Could not connect to 127.0.0.1:1\nE: apt-get update failed",
            "Could not connect",
            "does not answer",
        ),
        (
            "E: unshare(CLONE_NEWUSER) failed: Operation not permitted",
            "Operation not permitted",
            "does not let users make namespaces",
        ),
        (
            "E: something else: http://me:secret@mirror.example/debian",
            "//mirror.example/debian",
            "run it by hand",
        ),
    ],
)
def test_failures(log: str, message: str, hint: str) -> None:
    """The error has mmdebstrap's message without credentials, and a hint that fits."""
    error = mmdebstrap_error(BASE, 1, log)
    assert message in error.message and hint in error.hint and "secret" not in str(error)
