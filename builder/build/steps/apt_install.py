"""Installs the OS packages of a lock into a base image: one layer directly above it.

builder downloads and verifies the files; apt and dpkg of the base install them without network. The
layer is made once for a base and a list of packages, and is the same on every machine.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.build.bases.debian_tar import is_left_out
from builder.build.bases.image import BaseImage
from builder.build.bases.mmdebstrap import DPKG_OPTIONS
from builder.build.fetch.packages import fetch_packages
from builder.build.run.base import Mount
from builder.core.datafiles import any_of, script
from builder.core.errors import FetchError
from builder.core.model import Fetched, Layer, OsPackage
from builder.core.store.temporary import temporary_folder
from builder.core.workspace import Workspace
from builder.formats.layers.cache import cache_key, cached_layer
from builder.formats.layers.entry import Entry
from builder.formats.net.debarchives import host_mirrors, mirrored_archive, snapshot

from .apt_base import MOUNTED, make_readable
from .run import StepRun, run_step

log = logging.getLogger(__name__)

#: Title of the layer. It is part of the image's history, and so of its digest.
TITLE = "OS packages"
#: Part of the cache key of layers. Increase it when a change here results in other bytes.
FORMAT = 2
#: The base's own PATH may lead to programs that maintainer scripts do not expect.
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True, slots=True)
class OsInstall:
    """OS packages to install into a base."""

    base: BaseImage
    packages: tuple[OsPackage, ...]
    architecture: str
    """Debian's name of the base's."""
    locked: int | None
    """When the packages were locked, in seconds since 1970, for the snapshot services."""
    target: str
    """The name of the target, for messages."""
    where: str = ""
    """File, line and key of ``base_packages``, for messages."""


def fetch_os_packages(install: OsInstall, work: Workspace) -> list[Fetched]:
    """Return the files of OS packages; missing ones are downloaded into the store.

    In this order from: BUILDER_MIRRORS, the mirrors in this machine's apt settings, the address in
    the lock, the snapshot services of Debian and Ubuntu.

    Raises:
        FetchError: a package is nowhere.
        HashMismatch: a file does not match the lock.
        SpaceError: the disk is full.
    """
    mirrors = host_mirrors()
    packages = [package.locked("") for package in install.packages]
    places = {p.url: _places(p.url, mirrors, install.locked) for p in install.packages}
    try:
        return fetch_packages(packages, work, places=places)
    except FetchError as e:
        hint = e.hint
        if re.search("HTTP 4(04|10)", e.message):  # the archive has a newer version now
            hint = (
                f"lock the archive's current versions: builder lock {install.target} --update-base; "
                "or name a mirror that has these: BUILDER_MIRRORS='http://deb.debian.org/debian=URL'"
            )
        raise type(e)(f"OS packages of the lock are not available: {e.message}", hint) from None


def _places(url: str, mirrors: tuple[tuple[str, str], ...], locked: int | None) -> tuple[str, ...]:
    past = None if locked is None else snapshot(url, locked + 86_399)
    found = (mirrored_archive(url, mirrors), url, past)
    return tuple(dict.fromkeys(place for place in found if place is not None))


def os_layer(install: OsInstall, complete: Callable[[], BaseImage], work: Workspace) -> Layer:
    """Return the layer of the OS packages; install them if the cache does not have it.

    Args:
        install: what is installed; the layers of its base need not be on this machine.
        complete: returns the base with all layers on this machine, to install into it.
        work: the workspace.

    Raises:
        FetchError, HashMismatch: a package is not available, or does not match the lock.
        ImageError: the installation failed; the message has the last lines of apt and dpkg.
        RunnerError: no runner works here.
        SpaceError: the disk is full.
    """

    def make() -> Layer:
        return _install(replace(install, base=complete()), work)

    return cached_layer(_record(install, work), work.store, make)


def with_os_layer(base: BaseImage, layer: Layer) -> BaseImage:
    """Return the base with the layer on top; reference and digest stay those of the base."""
    rootfs, below = base.config.get("rootfs") or {}, base.history
    own = {"created_by": f"builder: {layer.title}"}
    config: dict[str, Any] = {
        **base.config,
        "rootfs": {"type": "layers", "diff_ids": [*rootfs.get("diff_ids", ()), layer.diff_id]},
        "history": [] if below is None else [*below, own],
    }
    return replace(base, config=config, layers=(*base.layers, layer), added=(*base.added, layer))


def _install(install: OsInstall, work: Workspace) -> Layer:
    log.info("installing %d OS packages for %s", len(install.packages), install.target)
    files = fetch_os_packages(install, work)
    with temporary_folder(work.settings.tmpdir, 0o755) as folder:
        (folder / "debs").mkdir()
        (folder / "install.sh").write_text(_script(install))
        for package, file in zip(install.packages, files, strict=True):
            shutil.copyfile(file.path, folder / "debs" / package.filename)
        make_readable(folder)
        step = StepRun(
            (f"sh {MOUNTED}/install.sh",),
            env=_ENV,
            mounts=(Mount(folder, MOUNTED),),
            where=install.where,
            title=f"OS packages of {install.base.reference}",
            leave_out=_is_left_out,
        )
        layer = run_step(install.base.runnable, step, work)
    return replace(layer, title=TITLE)


def _script(install: OsInstall) -> str:
    foreign = sorted({p.architecture for p in install.packages} - {"all", install.architecture})
    architectures = "".join(f"dpkg --add-architecture {name}\n" for name in foreign)
    options = " ".join(f"-o 'DPkg::Options::=--{name}'" for name in DPKG_OPTIONS)
    values = {"architectures": architectures, "dpkg": options, "folder": MOUNTED}
    return script(__file__, "apt_install.sh", **values)


def _is_left_out(entry: Entry) -> bool:
    """Return whether a path, or that of a whiteout, differs between runs or must be in no image."""
    name, left_out = entry.path.replace("/.wh.", "/"), any_of(__file__, "apt_left_out.txt")
    return is_left_out(name, is_folder=entry.kind == "dir") or bool(left_out.fullmatch(name))


def _record(install: OsInstall, work: Workspace) -> Path:
    files = sorted([p.filename, p.sha256] for p in install.packages)
    key = cache_key([FORMAT, install.base.digest, files, work.settings.epoch])
    return work.store.folders.layers / f"os-{key[:32]}.json"
