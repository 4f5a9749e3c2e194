"""A root file system of a few programs of this host: enough for an engine to run something."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import run_program

PROGRAMS = ("sh", "cat", "id", "ls", "env")
#: With what podman-hpc needs in an image to migrate it, see :mod:`tests.support.podman_hpc`.
MIGRATED = (*PROGRAMS, "mksquashfs")


def make_rootfs(folder: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """Fills ``folder`` with a shell, a few programs, and the libraries they load."""
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "root", "home", "run", "var/tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    (folder / "etc/builder-test").write_text("tiny\n")
    for program in programs:
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None
        shutil.copy(found, folder / "bin" / program)
        listing = run_program(["ldd", found], os.environ).stdout
        libraries = re.findall(r"(/\S+) \(0x", listing)
        if program == "mksquashfs":  # pthread_exit loads it
            libraries += map(str, Path("/usr/lib").glob("*-linux-gnu/libgcc_s.so.1"))
        for library in libraries:
            target = folder / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():  # a copy of a read-only library cannot be written again
                shutil.copy(library, target)
    return folder


def make_rootfs_tar(folder: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """The same as a tar, for ``docker import``."""
    tree = make_rootfs(folder / "rootfs", programs)
    path = folder / "rootfs.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(tree, "/", filter=_root_owned)
    return path


def _root_owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
