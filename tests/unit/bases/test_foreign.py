"""mmdebstrap's command for another processor."""

from __future__ import annotations

import sys

import pytest

from builder.bases import foreign
from builder.bases.foreign import foreign_command
from builder.errors import ImageError, RunnerError
from builder.qemu import Emulation

COMMAND = ["mmdebstrap", "--format=tar", "bookworm", "-", "-"]
LINE = ":qemu-aarch64:M::\\x7f:\\xff:/usr/bin/qemu's:PCF"


@pytest.mark.parametrize("mode", ["root", "unshare"])
def test_own_processor(mode: str) -> None:
    """Nothing changes for this host's processor, or where the host has registered qemu."""
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(foreign, "emulation", lambda architecture: None)
        assert foreign_command(COMMAND, "amd64", mode, "debian:bookworm") == COMMAND
        patch.setattr(foreign, "emulation", lambda architecture: Emulation("", ""))
        expected = ["mmdebstrap", "--skip=check/qemu", *COMMAND[1:]]
        assert foreign_command(COMMAND, "arm64", mode, "debian:bookworm") == expected


def test_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook registers qemu in mmdebstrap's namespace; for root that is a new one."""
    monkeypatch.setattr(foreign, "emulation", lambda architecture: Emulation(LINE, "qemu"))
    ordinary = foreign_command(COMMAND, "arm64", "unshare", "debian:bookworm")
    assert ordinary[0] == "mmdebstrap" and ordinary[2:] == ["--skip=check/qemu", *COMMAND[1:]]
    quoted = LINE.replace("'", "'\"'\"'")
    assert ordinary[1] == (
        "--setup-hook=mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && "
        f"printf %s '{quoted}' > /proc/sys/fs/binfmt_misc/register"
    )
    root = foreign_command(COMMAND, "arm64", "root", "debian:bookworm")
    assert root[0] == sys.executable and root[-len(ordinary) :] == ordinary


def test_no_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is about the base, and names the package and other bases."""

    def refuse(architecture: str) -> None:
        raise RunnerError("the image is for arm64, this host is amd64", "apt-get install qemu-user-static")

    monkeypatch.setattr(foreign, "emulation", refuse)
    with pytest.raises(ImageError) as caught:
        foreign_command(COMMAND, "arm64", "root", "debian:bookworm")
    assert caught.value.message == "debian:bookworm: the base is for arm64, this host is amd64"
    assert caught.value.hint.startswith("apt-get install qemu-user-static; or use a base")
