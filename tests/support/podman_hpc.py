"""podman-hpc 1.2.2, the real program, beside a podman with its own storage."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.install_registries import install_podman_hpc
from tests.support.parts import Podman, installed, need, part_missing
from tests.support.programs import run_program

#: ``mksquashfs.static`` of a site runs in the image that is migrated. This one calls the image's mksquashfs:
#: that of Debian 12 has no ``-xattrs-exclude``.
MKSQUASHFS = """\
#!/bin/sh
exec mksquashfs "$1" "$2" -comp gzip -no-xattrs -quiet -no-progress -e sqout mksq proc sys dev
"""
#: Modules that NERSC has on Perlmutter beside those of the package, whose only one for NCCL is ``nccl``.
MODULES = ("nccl-cu12", "nccl-cu13")


class PodmanHpc(Podman):
    """podman-hpc, with a storage of its own.

    ``PODMANHPC_MKSQUASHFS_BIN=/bin/false`` makes migrations fail.
    """

    def run(self, *args: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs ``podman-hpc ARGS``; with ``check``, a failure fails the test with its output."""
        return run_program(["podman-hpc", *args], self.env, check=check)


def podman_hpc(folder: Path, podman: Podman) -> PodmanHpc:
    """Returns podman-hpc, with the settings of a podman. Skips the test if a part is missing.

    Args:
        folder: gets the storage that all nodes see.
        podman: images that are migrated need ``mksquashfs``.
    """
    need("squashfuse", "fuse-overlayfs", "runc")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        part_missing("needs /dev/fuse")
    env = podman.env | program_environment(folder)
    env["PODMANHPC_GRAPH_ROOT"] = f"{podman.folder}/{folder.parent.name}"
    env["PODMANHPC_RUN_ROOT"] = f"{podman.folder}/run/hpc"
    env["PATH"] = f"{env['PATH']}:{podman.env['PATH']}"
    return PodmanHpc(env, podman.folder)


def program_environment(folder: Path) -> dict[str, str]:
    """Returns the variables of the program, with its settings and modules in ``folder``."""
    bin_ = installed(install_podman_hpc, "podman-hpc")
    folder.mkdir(exist_ok=True)
    modules = folder / "modules.d"
    modules.mkdir()
    for file in (bin_.parent / "etc/podman_hpc/modules.d").iterdir():
        (modules / file.name).write_text(file.read_text())
    for name in MODULES:
        variable = f"ENABLE_{name.upper().replace('-', '_')}"
        (modules / f"{name}.yaml").write_text(f"name: {name}\ncli_arg: {name}\nenv: {variable}\n")
    mksquashfs = folder / "mksquashfs"
    mksquashfs.write_text(MKSQUASHFS)
    mksquashfs.chmod(0o755)
    (folder / "hooks").mkdir()
    return {
        "PATH": str(bin_),
        "USER": "root",
        "SQUASH_DIR": f"{folder}/squash",
        "PODMANHPC_CONFIG_HOME": f"{folder}/config",
        "PODMANHPC_HOOKS_DIR": f"{folder}/hooks",
        "PODMANHPC_MKSQUASHFS_BIN": str(mksquashfs),
        "PODMANHPC_MODULES_DIR": str(modules),
    }
