"""Ways of running an image on this host, behind one small interface: docker, podman, apptainer, or no engine at all."""

from __future__ import annotations

from collections.abc import Collection

from builder.errors import RunnerError, UsageError
from builder.progress import QUIET, Reporter
from builder.run.base import Mount, Runner
from builder.run.process import Completed
from builder.settings import Settings
from builder.store.blobs import Store

__all__ = ["NAMES", "Completed", "Mount", "Runner", "find_runner", "runners"]

#: In the order in which they are tried.
NAMES = ("docker", "podman", "apptainer", "userns")


def runners(settings: Settings, store: Store, reporter: Reporter = QUIET) -> list[Runner]:
    """All there are, in the order in which they are tried; nothing is started yet."""
    from builder.run.apptainer import ApptainerRunner
    from builder.run.docker import DockerRunner
    from builder.run.podman import PodmanRunner
    from builder.run.userns import UsernsRunner

    return [
        kind(settings, store, reporter)
        for kind in (DockerRunner, PodmanRunner, ApptainerRunner, UsernsRunner)
    ]


def find_runner(
    settings: Settings,
    store: Store,
    prefer: str | None = None,
    reporter: Reporter = QUIET,
    *,
    without: Collection[str] = (),
) -> Runner:
    """The first runner that works here, or the one named; ``without`` those that turned out not to.

    Raises:
        RunnerError: none works, or the one named does not; each one's reason is in the message.
        UsageError: no runner has that name.
    """
    if prefer is not None and prefer not in NAMES:
        raise UsageError(f"no runner named {prefer!r}", f"there are {', '.join(NAMES)}")
    reasons = []
    for runner in runners(settings, store, reporter):
        if prefer in (None, runner.name) and runner.name not in without:
            reason = runner.available()
            if reason is None:
                return runner
            reasons.append(f"{runner.name}: {reason}")
    if prefer:
        raise RunnerError(
            f"the runner {reasons[0]}", "correct that, or leave --runner out: the first that works is taken"
        )
    raise RunnerError(
        "no way of running an image was found here:\n  " + "\n  ".join(reasons),
        "one of them is enough; see builder doctor",
    )
