"""What this host can lock, build, run and push, with a hint for what it cannot."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from builder.settings import Settings
from builder.version import __version__

Status = Literal["ok", "missing", "bad"]


@dataclass(frozen=True)
class Finding:
    """One line of the examination. ``missing`` is a thing one may live without, ``bad`` one that must be mended."""

    what: str
    status: Status
    found: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(settings: Settings) -> list[Finding]:
    """Looks at this host; takes a few seconds at most and changes nothing but the cache folder, which it makes."""
    return [
        Finding(
            "builder",
            "ok",
            f"{__version__} on Python {platform.python_version()}, {platform.machine()}, glibc {platform.libc_ver()[1] or '?'}",
        ),
        *_packages(),
        *_folders(settings),
        *_bases(),
        *_runners(settings),
        *_gpus(),
        *_credentials(),
    ]


def _packages() -> Iterator[Finding]:
    for name in ("py-rattler", "uv", "conda-lock"):
        try:
            yield Finding(f"lock: {name}", "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                f"lock: {name}", "bad", "not installed", "install builder again with its dependencies"
            )


def _folders(settings: Settings) -> Iterator[Finding]:
    for what, folder in (("cache", settings.cache), ("temporary files", settings.tmpdir)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".doctor-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as e:
            yield Finding(
                what, "bad", f"{folder}: {e.strerror}", "choose another with BUILDER_CACHE / BUILDER_TMPDIR"
            )
            continue
        free = shutil.disk_usage(folder).free
        enough = free > 10e9
        hint = "" if enough else "a CUDA image needs about 10 GB: prune the cache or choose another disk"
        yield Finding(what, "ok" if enough else "bad", f"{folder}: {free / 1e9:.0f} GB free", hint)


def _bases() -> Iterator[Finding]:
    tool = shutil.which("mmdebstrap")
    yield Finding(
        "base: debian:SUITE",
        "ok" if tool else "missing",
        tool or "no mmdebstrap",
        "" if tool else "apt-get install mmdebstrap",
    )
    for tool_name, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if not shutil.which(tool_name):
            yield Finding("Debian channel", "missing", f"no {tool_name}", f"needs Debian's {package}")
            return
    yield Finding("Debian channel", "ok", "apt-get and dpkg-deb")


def _runners(settings: Settings) -> Iterator[Finding]:
    from builder.run.select import runners
    from builder.store.blobs import Store

    for runner in runners(settings, Store(settings.cache)):
        reason = runner.available()
        yield Finding(f"run: {runner.name}", "ok" if reason is None else "missing", reason or "works")


def _gpus() -> Iterator[Finding]:
    commands = {
        "nvidia": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "amd": ["rocm-smi", "--showproductname"],
    }
    for vendor, command in commands.items():
        if not shutil.which(command[0]):
            continue
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            yield Finding(f"GPU: {vendor}", "bad", f"{command[0]}: {e}", "the driver does not answer")
            continue
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode:
            yield Finding(
                f"GPU: {vendor}",
                "bad",
                (done.stderr.strip() or "no answer").splitlines()[0],
                "the driver does not answer",
            )
        else:
            yield Finding(f"GPU: {vendor}", "ok", "; ".join(lines[:8]))
        return
    if Path("/dev/kfd").exists() or Path("/dev/nvidiactl").exists():
        yield Finding(
            "GPU",
            "missing",
            "device files, but neither nvidia-smi nor rocm-smi",
            "install the driver's tools",
        )
    else:
        yield Finding(
            "GPU", "missing", "none: images for GPUs can be built here, and smoke-tested on the target"
        )


def _credentials() -> Iterator[Finding]:
    places = {
        "REGISTRY_USER": "REGISTRY_USER/REGISTRY_PASSWORD" if os.environ.get("REGISTRY_USER") else "",
        "podman": os.environ.get("REGISTRY_AUTH_FILE")
        or f"{os.environ.get('XDG_RUNTIME_DIR', '/nonexistent')}/containers/auth.json",
        "docker": str(Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"),
    }
    found = [places["REGISTRY_USER"]] if places["REGISTRY_USER"] else []
    found += [p for name, p in places.items() if name != "REGISTRY_USER" and Path(p).exists()]
    hint = "" if found else "docker login, podman login, or REGISTRY_USER and REGISTRY_PASSWORD"
    yield Finding("push: credentials", "ok" if found else "missing", ", ".join(found) or "none", hint)
