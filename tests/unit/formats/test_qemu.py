"""Whether this host runs programs for another processor, and how."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.core.errors import RunnerError
from builder.formats import qemu
from builder.formats.qemu import Emulation, emulation, is_registered, registration_hint

MAGIC = "7f454c460201010000000000000000000200b700"
ENTRY = (
    "enabled\ninterpreter /usr/bin/qemu-aarch64-static\nflags: {flags}\noffset 0\nmagic {magic}\nmask ff\n"
)


def elf(kinds: list[int]) -> bytes:
    """A 64-bit ELF file with program headers of these types."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, len(kinds))
    return bytes(header) + b"".join(struct.pack("<I", kind) + bytes(52) for kind in kinds)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An amd64 host with Linux 6.12 and no registration; its programs are in this folder."""
    monkeypatch.setattr(qemu, "host_architecture", lambda: "amd64")
    monkeypatch.setattr(qemu, "is_registered", lambda architecture: False)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.12.3-amd64"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, name: str, kinds: list[int]) -> Path:
    path = folder / name
    path.write_bytes(elf(kinds))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "there"),
    [
        (ENTRY.format(flags="POCF", magic=MAGIC), True),
        (ENTRY.format(flags="OC", magic=MAGIC), False),
        (ENTRY.format(flags="", magic=MAGIC), False),
        (ENTRY.format(flags="F", magic=MAGIC.replace("b700", "3e00")), False),
        (ENTRY.format(flags="F", magic=MAGIC).replace("enabled", "disabled"), False),
        ("enabled\ninterpreter /usr/bin/python3\nflags: F\noffset 0\nmagic a70d0d0a\n", False),
    ],
)
def test_registered(text: str, there: bool, tmp_path: Path) -> None:
    """An entry counts if it is enabled, for the processor, and needs no qemu in the image."""
    (tmp_path / "some").write_text(text)
    (tmp_path / "status").write_text("enabled\n")
    assert is_registered("arm64", tmp_path) == there


def test_no_binfmt_misc(tmp_path: Path) -> None:
    assert not is_registered("arm64", tmp_path / "missing")
    assert not is_registered("riscv64", tmp_path)


def test_own_processor(host: Path) -> None:
    """Nothing is necessary, also if the config does not tell the processor."""
    assert emulation("amd64") is None
    assert emulation("") is None


def test_host_registration(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "is_registered", lambda architecture: True)
    assert emulation("arm64") == Emulation("", "")


@pytest.mark.parametrize("name", ["qemu-aarch64-static", "qemu-aarch64"])
def test_own_registration(name: str, host: Path) -> None:
    """The line is that of Debian's package, with the flags that builder needs."""
    program = install(host, name, [1, 1])
    found = emulation("arm64")
    assert found is not None and found.program == str(program)
    ones, head = "\\xff" * 7, MAGIC
    magic = "".join(f"\\x{head[at : at + 2]}" for at in range(0, len(head), 2))
    mask = f"{ones}\\x00{ones}\\xff\\xfe\\xff\\xff\\xff"
    assert found.registration == f":qemu-aarch64:M::{magic}:{mask}:{program}:PCF"


def test_dynamic_qemu(host: Path) -> None:
    """A qemu that needs libraries does not start in an image without them."""
    install(host, "qemu-aarch64", [1, 3])
    with pytest.raises(RunnerError, match="the image is for arm64, this host is amd64") as caught:
        emulation("arm64")
    assert "apt-get install qemu-user-static" in caught.value.hint


def test_old_kernel(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.7 only root can register it."""
    install(host, "qemu-aarch64-static", [1])
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="5.14.0-503.el9"))
    with pytest.raises(RunnerError) as caught:
        emulation("arm64")
    assert "Linux 5.14 has no binfmt_misc in user namespaces (6.7 has): as root:" in caught.value.hint


def test_unknown_processor(host: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        emulation("riscv64")
    assert caught.value.hint == registration_hint("riscv64") == "run it on a machine with riscv64"
