"""``builder doctor``: what this host can lock, build, run and push, with a hint for what it
cannot.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from builder.cli.context import Context, common_options, context_exit, pass_context
from builder.errors import BuilderError, ImageError
from builder.parallel import in_parallel
from builder.progress import working
from builder.run.process import execute, reason
from builder.settings import Settings, home_folder
from builder.text import Table, human_bytes
from builder.version import __version__

#: Bytes that a CUDA image needs in the cache while it is built.
_ENOUGH = 10e9
_LOGIN_HINT = "run docker login or podman login, or set REGISTRY_USER and REGISTRY_PASSWORD"
Status = Literal["ok", "missing", "broken", "bad"]


@dataclass(frozen=True)
class Finding:
    """One line of the report: ``missing`` and ``broken`` parts are optional, ``bad`` has to be
    fixed.
    """

    what: str
    status: Status
    found: str
    hint: str = ""


@click.command()
@common_options
@pass_context
def doctor(context: Context) -> None:
    """Report what this host can lock, build, run and push: tools, GPU, disk, credentials.

    Each container runner is tried with a tiny container, and nothing is left on the host. The exit
    code is 1 if something has to be fixed ("bad"); "missing" and "broken" parts are optional.
    """
    with working(context.output, "examining this host"):
        findings = examine(context.settings)
    table = Table(("", "what", "found", "hint"))
    for finding in findings:
        table.rows.append((finding.status, finding.what, finding.found, finding.hint))
    context.output.table(table)
    context.output.result([asdict(finding) for finding in findings])
    if any(finding.status == "bad" for finding in findings):
        context_exit(1)


def examine(settings: Settings) -> list[Finding]:
    """Check this host within a few seconds. Changes nothing, but creates the cache folder."""
    return [
        _builder(),
        *_folders(settings),
        _debian(),
        *_runners(),
        _gpus(),
        _credentials(),
    ]


def _builder() -> Finding:
    glibc = platform.libc_ver()[1] or "unknown"
    found = (
        f"{__version__} on Python {platform.python_version()}, {platform.machine()}, glibc {glibc}"
    )
    return Finding("builder", "ok", found)


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
        free = shutil.disk_usage(folder).free
        found = f"{folder}: {human_bytes(free)} free"
        if free > _ENOUGH:
            yield Finding(what, "ok", found)
        else:
            hint = (
                f"a CUDA image needs about {human_bytes(_ENOUGH)}: run builder cache prune, or set "
            )
            yield Finding(what, "bad", found, f"{hint}BUILDER_CACHE to another disk")


def _debian() -> Finding:
    """Return whether this user can make ``debian:`` bases here, by the check of the build
    itself.
    """
    from builder.bases.mmdebstrap import mmdebstrap_mode
    from builder.run.failures import hint_for

    reference = "debian:SUITE"
    try:
        mode = mmdebstrap_mode(reference)
    except ImageError as e:
        problem = e.message.removeprefix(f"{reference}: ")
        return Finding(
            f"base: {reference}", "missing", problem, hint_for("userns", problem) or e.hint
        )
    return Finding(f"base: {reference}", "ok", f"mmdebstrap, mode {mode}")


def _runners() -> Iterator[Finding]:
    """Run a tiny container with each runner, all at once."""
    from builder.run.select import runner_classes
    from builder.run.trial import try_runner

    kinds = runner_classes()
    for kind, problem in in_parallel(try_runner, kinds, len(kinds)):
        what = f"run: {kind.name}"
        if problem is None:
            yield Finding(what, "ok", "ran a container")
        else:
            status: Status = "broken" if problem.is_installed else "missing"
            yield Finding(what, status, problem.reason, problem.hint)


def _gpus() -> Finding:
    """List the GPUs with the vendor's tool."""
    commands = {
        "nvidia": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "amd": ["rocm-smi", "--showproductname"],
    }
    vendor = next(
        (vendor for vendor, command in commands.items() if shutil.which(command[0])), None
    )
    if vendor is None:
        found = "no nvidia-smi or rocm-smi: images for GPUs can be built here, and smoke-tested on the target"
        return Finding("GPU", "missing", found)
    try:
        done = execute(commands[vendor], timeout_s=20)
    except BuilderError as e:
        return Finding(f"GPU: {vendor}", "bad", e.message, e.hint)
    if done.returncode:
        return Finding(f"GPU: {vendor}", "bad", reason(done.stderr), "the driver does not answer")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return Finding(f"GPU: {vendor}", "ok", "; ".join(lines[:8]))


def _credentials() -> Finding:
    found = ["REGISTRY_USER and REGISTRY_PASSWORD"] if os.environ.get("REGISTRY_USER") else []
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    podman = Path(os.environ.get("REGISTRY_AUTH_FILE") or f"{runtime}/containers/auth.json")
    docker = Path(os.environ.get("DOCKER_CONFIG") or home_folder() / ".docker") / "config.json"
    found += [str(path) for path in (podman, docker) if path.exists()]
    if found:
        return Finding("push: credentials", "ok", ", ".join(found))
    return Finding("push: credentials", "missing", "none", _LOGIN_HINT)
