"""Puts Apptainer into a private folder: Debian sid's package, with trixie's C library beside it. Nothing of
the host is changed.

``python -m tests.support.install FOLDER [heavy]`` puts the parts that tests share below a folder.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock

from builder.build.bases.image import WantedBase
from builder.build.bases.resolve import resolve_base
from builder.core.errors import BuilderError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from tests.support import debs
from tests.support.debs import NotInstalled
from tests.support.install_registries import (
    LOADER,
    SLURM_SUITES,
    install,
    install_cosign,
    install_crane,
    install_mmdebstrap,
    install_oras,
    install_podman,
    install_podman_hpc,
    install_slurm,
    install_syft,
    set_loader,
)

#: Raise when the folder's content has to be made anew.
FORMAT = "1"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def install_apptainer(prefix: Path) -> Path:
    """The path of ``apptainer`` in ``prefix``, installed there (about 15 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    prefix = prefix.resolve()  # its programs hold their path: two clones may share it by a link

    def fill(work: Path) -> None:
        for deb in debs.download(work, ["apptainer/sid", "libc6/trixie"], ["sid", "trixie"]):
            debs.unpack([deb], prefix if deb.name.startswith("apptainer") else work / "libc")
        glibc = prefix / "glibc"
        loader = next((work / "libc").rglob(LOADER))
        shutil.copytree(loader.resolve().parent, glibc, symlinks=True)
        _adapt(prefix, glibc)

    install("Apptainer", prefix, f"{FORMAT} {prefix}", fill)  # the loader's path is written into the program
    return prefix / "usr/bin/apptainer"


def _adapt(prefix: Path, glibc: Path) -> None:
    """Makes the programs find their C library and their own files below ``prefix``."""
    for name in ("usr/bin/apptainer", "usr/lib/x86_64-linux-gnu/apptainer/bin/starter"):
        set_loader(prefix / name, glibc / LOADER, f"{glibc}:{LIBRARIES}")
    for folder in ("usr", "usr/lib"):
        for name in ("etc", "var"):
            (prefix / folder / name).symlink_to(os.path.relpath(prefix / name, prefix / folder))
    (prefix / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    conf = prefix / "etc/apptainer/apptainer.conf"
    # root in a container may lack capabilities (CAP_SYS_RESOURCE, say) that apptainer would otherwise ask for
    text, count = re.subn(
        r"(?m)^root default capabilities = .*$", "root default capabilities = no", conf.read_text()
    )
    conf.write_text(text if count else f"{text}\nroot default capabilities = no\n")
    (prefix / "usr/bin/singularity").unlink(missing_ok=True)
    (prefix / "usr/bin/singularity").symlink_to("apptainer")


def base_folder(cache: Path) -> Path:
    """Make the base ``debian:bookworm`` in a cache, if it is not there; return the cache."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(cache.parent / f".{cache.name}.lock"):
        settings = Settings.from_environment(cache=cache)
        resolve_base("debian:bookworm", WantedBase("amd64"), Workspace(settings, Store(cache)))
    return cache


def install_all(folder: Path, *, heavy: bool) -> list[str]:
    """Install the parts, each in a folder of its own; return what failed, one line each.

    Args:
        folder: gets their folders.
        heavy: those of the heavy tests too, 2 GB.
    """
    from tests.support.package_folders import install_folder

    def failure(install: Callable[[Path], object], name: str) -> str:
        try:
            install(folder / name)
        except (BuilderError, NotInstalled) as e:
            return str(e)
        return ""

    parts: list[tuple[Callable[[Path], object], str]] = [
        (install_crane, "crane"),
        (install_syft, "syft"),
        (base_folder, "base"),
    ]
    if heavy:
        more = [(install_folder, "torch"), (install_folder, "ray"), (install_apptainer, "apptainer")]
        more += [(install_slurm, f"slurm-{suite}") for suite in SLURM_SUITES]
        more += [
            (install_cosign, "cosign"),
            (install_mmdebstrap, "mmdebstrap"),
            (install_oras, "oras"),
            (install_podman, "podman"),
            (install_podman_hpc, "podman-hpc"),
        ]
        parts = [*more, *parts]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [line for line in pool.map(lambda part: failure(*part), parts) if line]


if __name__ == "__main__":
    failures = install_all(Path(sys.argv[1]).absolute(), heavy=sys.argv[2:] != [])
    if failures:
        sys.exit("\n".join(failures))
