"""``builder doctor``: what this host can lock, build, run and push, with a hint for what it cannot.

:mod:`builder.cli.doctor_target` has the checks of one target.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from builder.cli.context import Context, common_options, complete_target, context_exit, pass_context
from builder.cli.finding import LOGIN_HINT, MARKS, Finding, debian_finding, disk_finding, runner_findings
from builder.progress import working
from builder.settings import Settings, home_folder
from builder.version import __version__

#: Bytes that a CUDA image needs in the cache while it is built.
_ENOUGH = 10e9


@click.command()
@click.argument("target", required=False, shell_complete=complete_target)
@common_options
@pass_context
def doctor(context: Context, target: str | None) -> None:
    """Report what this host can lock, build, run and push: tools, GPU, disk, credentials.

    Each container runner is tried with a tiny container. With TARGET: whether this host can lock, build,
    test, run and push that target. Nothing is left on the host. The exit code is 1 if something has to be
    fixed ("bad"); "missing" and "broken" parts are optional.
    """
    from builder.cli.doctor_target import examine_target

    with working(context.output, "examining this host"):
        if target is None:
            findings = examine(context.settings)
        else:
            findings = examine_target(context.project, context.one_recipe(target))
    table = Table("", "what", "found", "hint", box=None)
    for finding in findings:
        table.add_row(MARKS[finding.status], finding.what, escape(finding.found), escape(finding.hint))
    context.output.table(table)
    context.output.result([finding.to_json() for finding in findings])
    if any(finding.status == "bad" for finding in findings):
        context_exit(1)


def examine(settings: Settings) -> list[Finding]:
    """Checks this host within a few seconds. Changes nothing, but creates the cache folder."""
    return [
        _builder(),
        *_packages(),
        *_folders(settings),
        *_bases(),
        *runner_findings(),
        _gpus(),
        _credentials(),
    ]


def _builder() -> Finding:
    glibc = platform.libc_ver()[1] or "unknown"
    found = f"{__version__} on Python {platform.python_version()}, {platform.machine()}, glibc {glibc}"
    return Finding("builder", "ok", found)


def _packages() -> Iterator[Finding]:
    for name in ("py-rattler", "uv"):
        try:
            yield Finding(f"lock: {name}", "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            hint = "install builder again with its dependencies"
            yield Finding(f"lock: {name}", "bad", "not installed", hint)


def _folders(settings: Settings) -> Iterator[Finding]:
    for what, folder in (("cache", settings.cache), ("temporary files", settings.tmpdir)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".doctor-{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as e:
            hint = "choose another folder with BUILDER_CACHE or BUILDER_TMPDIR"
            yield Finding(what, "bad", f"{folder}: {e.strerror}", hint)
            continue
        yield disk_finding(what, folder, _ENOUGH, "a CUDA image")


def _bases() -> Iterator[Finding]:
    yield debian_finding("debian:SUITE", "missing")
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if not shutil.which(program):
            yield Finding(
                "Debian channel", "missing", f"no {program}", f"it is in Debian's package {package}"
            )
            return
    yield Finding("Debian channel", "ok", "apt-get and dpkg-deb")


def _gpus() -> Finding:
    commands = {
        "nvidia": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "amd": ["rocm-smi", "--showproductname"],
    }
    for vendor, command in commands.items():
        if shutil.which(command[0]):
            return _driver(vendor, command)
    if Path("/dev/kfd").exists() or Path("/dev/nvidiactl").exists():
        found = "device files, but neither nvidia-smi nor rocm-smi"
        return Finding("GPU", "missing", found, "install the driver's tools")
    found = "none: images for GPUs can be built here, and smoke-tested on the target"
    return Finding("GPU", "missing", found)


def _driver(vendor: str, command: list[str]) -> Finding:
    """Lists the GPUs with the vendor's tool."""
    what, hint = f"GPU: {vendor}", "the driver does not answer"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        return Finding(what, "bad", f"{command[0]}: {e}", hint)
    if done.returncode:
        return Finding(what, "bad", (done.stderr.strip() or "no answer").splitlines()[0], hint)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return Finding(what, "ok", "; ".join(lines[:8]))


def _credentials() -> Finding:
    found = ["REGISTRY_USER and REGISTRY_PASSWORD"] if os.environ.get("REGISTRY_USER") else []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    podman = Path(os.environ.get("REGISTRY_AUTH_FILE") or f"{runtime}/containers/auth.json")
    docker = Path(os.environ.get("DOCKER_CONFIG") or home_folder() / ".docker") / "config.json"
    found += [str(path) for path in (podman, docker) if path.exists()]
    if found:
        return Finding("push: credentials", "ok", ", ".join(found))
    return Finding("push: credentials", "missing", "none", LOGIN_HINT)
