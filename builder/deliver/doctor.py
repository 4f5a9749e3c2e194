"""What this host can lock, build, run and push, with a hint for each part that it cannot use."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.build.bases.mmdebstrap import mmdebstrap_mode
from builder.build.run.failures import hint_for
from builder.build.run.process import execute, reason
from builder.build.run.select import runner_classes
from builder.build.run.trial import try_runner
from builder.core.errors import BuilderError, ImageError, RegistryError
from builder.core.parallel import in_parallel
from builder.core.settings import Settings
from builder.core.store.folders import CacheFolders
from builder.core.text import human_bytes
from builder.core.version import __version__
from builder.formats.registry.credentials import auth_files, auth_places

#: Bytes that a CUDA image needs in the cache while it is built.
_ENOUGH = 10e9
_LOGIN_HINT = "run docker login or podman login, or set REGISTRY_USER and REGISTRY_PASSWORD"
#: Vendors of GPUs, and the commands that list them.
_GPU_COMMANDS = {
    "nvidia": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
    "amd": ["rocm-smi", "--showproductname"],
}


@dataclass(frozen=True)
class Finding:
    """One part of the host: ``missing`` and ``broken`` parts are optional, ``bad`` has to be
    fixed.
    """

    what: str
    status: Literal["ok", "missing", "broken", "bad"]
    found: str
    hint: str = ""


def examine_host(settings: Settings) -> list[Finding]:
    """Check this host within a few seconds. Changes nothing, but creates the cache folder."""
    glibc = platform.libc_ver()[1] or "unknown"
    python = f"Python {platform.python_version()}, {platform.machine()}"
    return [
        Finding("builder", "ok", f"{__version__} on {python}, glibc {glibc}"),
        _folder("cache", settings.cache),
        _folder("temporary files", settings.tmpdir),
        _debian(),
        *_runners(),
        _gpus(),
        _credentials(),
    ]


def _folder(what: str, folder: Path) -> Finding:
    try:
        if what == "cache":
            CacheFolders(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except BuilderError as e:
        return Finding(what, "bad", e.message, e.hint)
    except OSError as e:
        hint = "choose another folder with BUILDER_CACHE or BUILDER_TMPDIR"
        return Finding(what, "bad", f"{folder}: {e.strerror}", hint)
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {human_bytes(free)} free"
    if free > _ENOUGH:
        return Finding(what, "ok", found)
    hint = f"a CUDA image needs about {human_bytes(_ENOUGH)}: run builder cache prune, or set "
    return Finding(what, "bad", found, f"{hint}BUILDER_CACHE to another disk")


def _debian() -> Finding:
    """Check by the build's own function whether this user can make ``debian:`` bases here."""
    what = "base: debian:SUITE"
    try:
        return Finding(what, "ok", f"mmdebstrap, mode {mmdebstrap_mode('debian:SUITE')}")
    except ImageError as e:
        problem = e.message.removeprefix("debian:SUITE: ")
        return Finding(what, "missing", problem, hint_for("userns", problem) or e.hint)


def _runners() -> Iterator[Finding]:
    """Run a tiny container with each runner, all at once."""
    runners = runner_classes()
    for runner, problem in in_parallel(try_runner, runners, len(runners)):
        what = f"run: {runner.name}"
        if problem is None:
            yield Finding(what, "ok", "ran a container")
        else:
            status: Literal["broken", "missing"] = "broken" if problem.is_installed else "missing"
            yield Finding(what, status, problem.reason, problem.hint)


def _gpus() -> Finding:
    """List the GPUs with the vendor's tool."""
    vendor = next((name for name, words in _GPU_COMMANDS.items() if shutil.which(words[0])), None)
    if vendor is None:
        found = "no nvidia-smi or rocm-smi: images for GPUs can be built here, and smoke-tested on the target"
        return Finding("GPU", "missing", found)
    what = f"GPU: {vendor}"
    try:
        done = execute(_GPU_COMMANDS[vendor], timeout_s=20)
    except BuilderError as e:
        return Finding(what, "bad", e.message, e.hint)
    if done.returncode:
        return Finding(what, "bad", reason(done.stderr), "the driver does not answer")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return Finding(what, "ok", "; ".join(lines[:8]))


def _credentials() -> Finding:
    """List the places of credentials that exist, with the names of their hosts, never a value."""
    what = "push: credentials"
    found = ["REGISTRY_USER and REGISTRY_PASSWORD"] if os.environ.get("REGISTRY_USER") else []
    try:
        places = ", ".join(map(str, auth_places()))
        found += [f"{file.path}: {', '.join(file.hosts()) or 'no host'}" for file in auth_files()]
    except RegistryError as e:
        return Finding(what, "broken", e.message, e.hint)
    if found:
        return Finding(what, "ok", "; ".join(found))
    return Finding(what, "missing", f"none in {places}", _LOGIN_HINT)
