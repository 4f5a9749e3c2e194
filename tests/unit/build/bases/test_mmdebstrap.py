"""mmdebstrap: who can run it, and its failures."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.bases import debian_mirror, mmdebstrap
from builder.build.bases.image import WantedBase
from builder.build.bases.mmdebstrap import DebianBase, mmdebstrap_error
from builder.build.bases.resolve import resolve_base
from builder.core.errors import ImageError
from builder.core.progress import QUIET
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.net import apt
from tests.support.image_kit import member, tar_bytes

BASE = DebianBase("debian:bookworm", "bookworm", ("ca-certificates",), "amd64", sources="")


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        apt,
        "apt_sources",
        lambda suite: "Types: deb\nURIs: file:///nowhere\nSuites: bookworm\nComponents: main\n",
    )
    monkeypatch.setattr(debian_mirror, "mirror_state", lambda *a: None)


@pytest.mark.parametrize(
    ("which", "message", "hint"),
    [
        (("mmdebstrap",), "needs newuidmap", "apt-get install uidmap"),
        (("mmdebstrap", "newuidmap", "newgidmap"), "no range of ids in /etc/subuid", "usermod --add-subuids"),
    ],
)
@pytest.mark.usefixtures("no_mirror")
def test_ordinary_user_who_cannot(
    which: tuple[str, ...],
    message: str,
    hint: str,
    store: Store,
    given: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ordinary user learns which program or range of ids is missing."""
    monkeypatch.setattr(
        mmdebstrap.shutil, "which", lambda name: f"/usr/bin/{name}" if name in which else None
    )
    monkeypatch.setattr(mmdebstrap.os, "geteuid", lambda: 987654)
    monkeypatch.setattr(mmdebstrap, "ranges", lambda file: [])
    with pytest.raises(ImageError, match=message) as caught:
        resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(given, store))
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


def test_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """apt's settings are not all that can be wrong."""
    monkeypatch.setenv("HTTP_PROXY", "http://p.example:3128")
    log = "E: Failed to fetch http://mirror.example/debian/dists/x/InRelease  407  Proxy Authentication"
    assert mmdebstrap_error(BASE, 25, log).hint.startswith("check the proxy p.example:3128 of HTTP_PROXY")


def test_apt_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of all files that this user may read: mmdebstrap's apt runs as another user."""
    single, folder = tmp_path / "auth.conf", tmp_path / "auth.conf.d"
    monkeypatch.setattr(debian_mirror, "_CREDENTIALS", (single, folder))
    assert debian_mirror.apt_credentials() == ""
    folder.mkdir()
    for path, name in ((single, "one"), (folder / "b.conf", "two"), (folder / "ignored.bak", "three")):
        path.write_text(f"machine {name} login u password p")
        path.chmod(0o600)
    texts = [f"machine {name} login u password p\n" for name in ("one", "two")]
    assert debian_mirror.apt_credentials() == "".join(texts)
    command = mmdebstrap._command(BASE, "unshare")
    assert not any("password" in word for word in command)


def test_foreign_processor(
    store: Store, given: Settings, no_mirror: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base for a processor whose programs this host cannot run is refused before a download."""
    monkeypatch.setattr(mmdebstrap, "mmdebstrap_mode", lambda reference: "root")
    monkeypatch.setattr(mmdebstrap, "host_architecture", lambda: "amd64")
    monkeypatch.setattr(mmdebstrap, "is_registered", lambda architecture: False)
    with pytest.raises(ImageError, match="the base is for arm64, this host is amd64") as caught:
        resolve_base("debian:bookworm", WantedBase("arm64"), Workspace(given, store))
    assert "apt-get install qemu-user-static binfmt-support" in caught.value.hint


def test_messages_of_a_failure(
    tmp_path: Path, store: Store, given: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has what mmdebstrap wrote, although it wrote a part of a tar, too."""
    use_program(tmp_path, monkeypatch, "echo half\necho 'E: Unable to locate package nope' >&2\nexit 25\n")
    with pytest.raises(ImageError, match="has no package nope"):
        mmdebstrap.make_debian_base(BASE, Workspace(given, store, QUIET))


@pytest.mark.parametrize(
    ("size", "code", "message"),
    [
        (
            2 << 20,
            0,
            "mmdebstrap succeeded, but its tar cannot be read: './bin/a' is a sparse file of tar's GNU",
        ),
        (
            2 << 20,
            1,
            "exit code 1, and its tar cannot be read: './bin/a' is a sparse file .*:\n    E: no space",
        ),
        (1024 + 48, 0, "mmdebstrap succeeded, but its tar cannot be read: it ends too early"),
        (1024 + 48, 1, "mmdebstrap failed with exit code 1:\n    E: no space"),
        (0, 0, "mmdebstrap succeeded, but its tar cannot be read: it ends too early"),
    ],
)
def test_unreadable_tar(
    size: int,
    code: int,
    message: str,
    tmp_path: Path,
    store: Store,
    given: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What builder cannot read is said, with the member, whatever mmdebstrap's exit code is.

    A tar of GNU tar's own format stands for one that a later mmdebstrap writes: for mmdebstrap 1.6.0,
    whose tar had sparse files, builder once said "mmdebstrap failed with exit code 0".
    """
    first, unread = member("./bin/b", b"b"), member("./bin/a", kind=b"S")
    tar = tar_bytes([first, unread], tarfile.GNU_FORMAT) + bytes(2 << 20)
    (tmp_path / "tar").write_bytes(tar[:size])
    commands = f"cat {tmp_path}/tar\necho 'E: no space' >&2\nexit {code}\n"
    use_program(tmp_path, monkeypatch, commands)
    with pytest.raises(ImageError, match=f"debian:bookworm: .*{message}"):
        mmdebstrap.make_debian_base(BASE, Workspace(given, store, QUIET))


def use_program(folder: Path, monkeypatch: pytest.MonkeyPatch, commands: str) -> None:
    """Let a script be the mmdebstrap of this machine."""
    program = folder / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{commands}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(mmdebstrap, "mmdebstrap_mode", lambda reference: "root")


@pytest.mark.parametrize(
    ("suite", "hint"),
    [
        ("bokworm", "did you mean debian:bookworm?"),
        ("trixy", "did you mean debian:trixie?"),
        ("nobel", "did you mean debian:noble?"),
        ("noble", "correct base:, or use a base from docker:// or oci:"),
        ("xyz", "correct base:, or use a base from docker:// or oci:"),
    ],
)
def test_unknown_suite(suite: str, hint: str) -> None:
    """apt 2.6 says it of the suite and of its updates, and mmdebstrap 1.3 ends with 25."""
    log = "".join(
        f"E: The repository 'http://h/debian {name} Release' does not have a Release file.\n"
        for name in (suite, f"{suite}-updates")
    )
    error = mmdebstrap_error(replace(BASE, suite=suite, reference=f"debian:{suite}"), 25, log)
    assert error.message == f"debian:{suite}: the mirror of apt's settings has no such suite"
    assert error.hint == hint
