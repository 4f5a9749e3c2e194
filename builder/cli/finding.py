"""What ``builder doctor`` reports, and the checks that a host and a target share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from builder.errors import ImageError
from builder.parallel import in_parallel
from builder.text import human_bytes

Status = Literal["ok", "missing", "broken", "bad"]
MARKS = {
    "ok": "[green]ok[/green]",
    "missing": "[yellow]missing[/yellow]",
    "broken": "[yellow]broken[/yellow]",
    "bad": "[red]bad[/red]",
}
#: The hint where no credentials of a registry are found.
LOGIN_HINT = "run docker login or podman login, or set REGISTRY_USER and REGISTRY_PASSWORD"


@dataclass(frozen=True)
class Finding:
    """One line of the report: ``missing`` and ``broken`` parts are optional, ``bad`` has to be fixed."""

    what: str
    status: Status
    found: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def runner_findings() -> Iterator[Finding]:
    """Runs a tiny container with each runner, all at once."""
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


def debian_finding(reference: str, status: Status) -> Finding:
    """Whether this user can make ``debian:`` bases here; ``status`` if not.

    It is the check of the build itself.
    """
    from builder.bases.mmdebstrap import mmdebstrap_mode
    from builder.run.failures import hint_for

    what = f"base: {reference}"
    try:
        mode = mmdebstrap_mode(reference)
    except ImageError as e:
        problem = e.message.removeprefix(f"{reference}: ")
        return Finding(what, status, problem, hint_for("userns", problem) or e.hint)
    return Finding(what, "ok", f"mmdebstrap, mode {mode}")


def disk_finding(what: str, folder: Path, enough: float, purpose: str) -> Finding:
    """Whether a disk has enough bytes free."""
    free = shutil.disk_usage(folder).free
    found = f"{folder}: {human_bytes(free)} free"
    if free > enough:
        return Finding(what, "ok", found)
    needs = f"{purpose} needs about {human_bytes(enough)}"
    hint = f"{needs}: run builder cache prune, or set BUILDER_CACHE to another disk"
    return Finding(what, "bad", found, hint)
