"""Programs for another processor, run by qemu's user mode through the kernel's binfmt_misc.

The kernel runs a program of a foreign processor with an interpreter that was registered for its
format (the first bytes of the file). A registration is one of two:

1. This host's. Root makes it (Debian: ``apt-get install qemu-user-static binfmt-support``), and all
   container engines profit.
2. A user namespace's own, since Linux 6.7. Whoever makes the namespace makes the registration; the
   host remains as it is.

With the flag F the kernel opens the interpreter when it is registered, so the image does not need a
copy.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import RunnerError

from .layers.elf import needed_by
from .oci.image import host_architecture

#: By the OCI's name of the processor: qemu's name, and ELF's number (elf.h: e_machine).
_PROCESSORS = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_OWN_REGISTRATION_FROM = (6, 7)
#: The header of an ELF program up to ``e_machine``: 64 bits, little-endian, any ABI, ET_EXEC or ET_DYN.
_HEADER = bytes.fromhex("7f454c46 02010100 0000000000000000 0200")
_MASK = bytes.fromhex("ffffffff ffffff00 ffffffffffffffff feff ffff")
#: P: the interpreter receives the program's own argv[0]. C: set-user-ID works. F: see above.
_FLAGS = "PCF"
_PACKAGE = "qemu-user-static"


@dataclass(frozen=True, slots=True)
class Emulation:
    """The way in which this host runs programs for another processor."""

    registration: str
    """The line for the file ``register`` of a namespace's binfmt_misc; empty: the host's
    registration is enough."""
    program: str
    """qemu, for messages; empty if the host's registration is used."""


def emulation(architecture: str) -> Emulation | None:
    """Return the emulation that runs programs for a processor; None for the host's own.

    Args:
        architecture: as the OCI names it: ``arm64``.

    Raises:
        RunnerError: this host cannot run them; the hint names the package.
    """
    if architecture in ("", host_architecture()):
        return None
    if is_registered(architecture):
        return Emulation("", "")
    program = _static_qemu(architecture)
    if program and _kernel() >= _OWN_REGISTRATION_FROM:
        return Emulation(_registration(architecture, program), program)
    raise RunnerError(cannot_run(architecture), _hint(architecture, program))


def cannot_run(architecture: str) -> str:
    """Return ``the image is for arm64, this host is amd64``."""
    return f"the image is for {architecture}, this host is {host_architecture()}"


def registration_hint(architecture: str) -> str:
    """Return root's command that lets all programs of this host start those for a processor."""
    if architecture not in _PROCESSORS:
        return f"run it on a machine with {architecture}"
    return f"as root: apt-get install {_PACKAGE} binfmt-support; or run it on a machine with {architecture}"


def is_registered(architecture: str, folder: Path = _BINFMT) -> bool:
    """Return whether this host has an interpreter that needs no copy of it in the image."""
    if architecture not in _PROCESSORS:
        return False
    number = _PROCESSORS[architecture][1].to_bytes(2, "little").hex()
    try:
        entries = [path for path in folder.iterdir() if path.name not in ("register", "status")]
        texts = [path.read_text() for path in entries]
    except OSError:
        return False
    return any(_runs(text, number) for text in texts)


def _runs(text: str, number: str) -> bool:
    """Return whether an entry of binfmt_misc is enabled, with flag F, and for this processor."""
    magic = re.search(r"^magic 7f454c46([0-9a-f]+)$", text, re.MULTILINE)
    flags = re.search(r"^flags: *(\S*)$", text, re.MULTILINE)
    is_enabled = text.startswith("enabled\n")
    return bool(is_enabled and magic and magic[1][28:32] == number and flags and "F" in flags[1])


def _registration(architecture: str, program: str) -> str:
    """Return a line for ``register``, see the kernel's admin-guide/binfmt-misc.rst."""
    name, number = _PROCESSORS[architecture]
    magic = _HEADER + number.to_bytes(2, "little")
    escaped = ["".join(f"\\x{byte:02x}" for byte in data) for data in (magic, _MASK)]
    return f":qemu-{name}:M::{escaped[0]}:{escaped[1]}:{program}:{_FLAGS}"


def _static_qemu(architecture: str) -> str:
    """Return the path of qemu for a processor if it needs no library; empty if there is none.

    Debian 13 has a static one under the short name.
    """
    if architecture not in _PROCESSORS:
        return ""
    name = f"qemu-{_PROCESSORS[architecture][0]}"
    found = filter(None, map(shutil.which, (f"{name}-static", name)))
    usable = (path for path in found if ":" not in path)
    return next((path for path in usable if needed_by(Path(path).read_bytes()) == ()), "")


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


def _hint(architecture: str, program: str) -> str:
    if program:
        major, minor = _OWN_REGISTRATION_FROM
        release = ".".join(map(str, _kernel()))
        lack = f"Linux {release} has no binfmt_misc in user namespaces ({major}.{minor} has)"
        return f"{lack}: {registration_hint(architecture)}"
    if architecture not in _PROCESSORS:
        return registration_hint(architecture)
    return f"apt-get install {_PACKAGE}; or run it on a machine with {architecture}"
