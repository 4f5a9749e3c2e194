"""mmdebstrap for another processor: dpkg and the packages' scripts run under qemu.

Where this host has no registration of qemu (:mod:`builder.qemu`), a hook registers it in the user namespace
that mmdebstrap works in. As an ordinary user mmdebstrap makes that namespace itself. As root it would work in
the host's, so namespace.py makes one first, in which all ids are the host's.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from builder.errors import ImageError, RunnerError
from builder.qemu import emulation

#: Imports namespace.py without the packages of the environment.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from builder.bases.namespace import main; main()"
_FOLDER = Path(__file__).parents[2]
_BINFMT = "/proc/sys/fs/binfmt_misc"


def foreign_command(command: list[str], architecture: str, mode: str, reference: str) -> list[str]:
    """The command of mmdebstrap for a processor, which need not be this host's.

    Args:
        command: mmdebstrap and its options.
        architecture: Debian's and the OCI's name.
        mode: mmdebstrap's.
        reference: of the base, for messages.

    Raises:
        ImageError: this host cannot run programs for the processor; the hint names the package.
    """
    try:
        found = emulation(architecture)
    except RunnerError as e:
        hint = f"{e.hint}; or use a base that is complete: docker:// or oci:"
        raise ImageError(f"{reference}: {e.message}".replace("the image", "the base"), hint) from None
    if found is None:
        return command
    program, *options = command
    command = [program, "--skip=check/qemu", *options]  # it would require the package arch-test
    if not found.registration:
        return command
    register = f"printf %s {shlex.quote(found.registration)} > {_BINFMT}/register"
    command.insert(1, f"--setup-hook=mount -t binfmt_misc none {_BINFMT} && {register}")
    if mode != "root":
        return command
    return [sys.executable, "-I", "-S", "-c", _START, str(_FOLDER), *command]
