"""Chooses a runner: docker, podman-hpc, podman, apptainer, or user namespaces without an engine."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from builder.build.run import RUNNER_NAMES
from builder.core.errors import RunnerError, UsageError
from builder.core.model import Image, SifImage
from builder.core.progress import Reporter
from builder.core.workspace import Workspace
from builder.lock.config.site import GpuVendor

from .failures import hint_for
from .gpu import is_complete

if TYPE_CHECKING:
    from .base import Runner

log = logging.getLogger(__name__)

#: Those that run SIFs.
SIF_RUNNER_NAMES = ("userns", "apptainer")


def runners(work: Workspace, *, gpu: GpuVendor = "none") -> list[Runner]:
    """Return all runners in the order in which they are tried for an image; nothing is started yet.

    It is that of :data:`builder.build.run.RUNNER_NAMES`, with exceptions for an image for GPUs.
    podman-hpc comes first, because it has the settings of its site's GPUs. Where device files are
    missing, engines come before the runners that pass on what is in /dev: an engine can make the
    files, or be on another machine.
    """
    found = [runner(work) for runner in runner_classes()]
    if gpu != "none":
        names = () if is_complete(gpu) else SIF_RUNNER_NAMES
        found.sort(key=lambda runner: (runner.name != "podman-hpc", runner.name in names))
    return found


def runner_classes() -> tuple[type[Runner], ...]:
    """Return the runners' classes in the order of :data:`RUNNER_NAMES`."""
    from .apptainer import ApptainerRunner
    from .docker import DockerRunner
    from .podman import PodmanHpcRunner, PodmanRunner
    from .userns import UsernsRunner

    engines = (PodmanHpcRunner, DockerRunner, PodmanRunner)
    return (UsernsRunner, *engines, ApptainerRunner)


def find_runner(
    work: Workspace,
    prefer: str | None = None,
    *,
    gpu: GpuVendor = "none",
    without: Collection[str] = (),
    image: Image | SifImage | None = None,
) -> Runner:
    """Return the first runner that works on this host, or the named one.

    An engine is tried with a tiny container first: it may answer, load an image of gigabytes, and
    only then fail. The named runner is not tried, because nothing could replace it.

    Args:
        prefer: Name of the only runner to try; None tries all.
        gpu: The GPUs that the image is for; see :func:`runners`.
        without: Names of runners to skip: they failed before, or are not fit for the task.
        image: What is run: of all runners, those that run no SIF are skipped for one.

    Raises:
        RunnerError: No runner works, or the named one does not; the message has the reason of each.
        UsageError: No runner has that name.
    """
    if prefer not in (None, *RUNNER_NAMES):
        raise UsageError(f"no runner named {prefer!r}", f"runners: {', '.join(RUNNER_NAMES)}")

    names = SIF_RUNNER_NAMES if isinstance(image, SifImage) else RUNNER_NAMES
    fit = {prefer} if prefer else set(names).difference(without)
    reasons: list[str] = []
    for runner in runners(work, gpu=gpu):
        if runner.name not in fit:
            continue
        reason = runner.available() or _trial_problem(runner, prefer, work.reporter)
        if reason is None:
            log.info("runner %s works", runner.name)
            return runner
        log.info("runner %s does not work: %s", runner.name, reason)
        reasons.append(f"{runner.name}: {reason}")

    if prefer:
        default = "fix that, or omit --runner to use the first runner that works"
        raise RunnerError(f"the runner {reasons[0]}", hint_for(prefer, reasons[0]) or default)
    message = "no runner works on this host:\n  " + "\n  ".join(reasons)
    raise RunnerError(message, "install or fix one of them; builder doctor shows the state of each")


def _trial_problem(runner: Runner, prefer: str | None, reporter: Reporter) -> str | None:
    """Return None if a runner runs a container, or need not show it; else warn, with the reason."""
    from .storage import EngineRunner
    from .trial import try_runner

    if prefer is not None or not isinstance(runner, EngineRunner):
        return None
    problem = try_runner(type(runner))
    if problem is None:
        return None
    hint = f"\n  hint: {problem.hint}" if problem.hint else ""
    reporter.warn(f"{problem.reason}; trying the next runner{hint}")
    return problem.reason
