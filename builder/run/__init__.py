"""Ways of running an image on this host, behind one small interface: docker, podman, apptainer, or no engine at all."""

from __future__ import annotations

from builder.errors import RunnerError
from builder.progress import QUIET, Reporter
from builder.run.base import Completed, Mount, Runner
from builder.settings import Settings
from builder.store import Store

__all__ = ["Completed", "Mount", "Runner", "find_runner", "runners"]


def runners(settings: Settings, store: Store) -> list[Runner]:
    """All there are, in the order in which they are tried."""
    from builder.run.apptainer import ApptainerRunner
    from builder.run.docker import DockerRunner
    from builder.run.embedded import EmbeddedRunner
    from builder.run.podman import PodmanRunner

    return [DockerRunner(), PodmanRunner(settings, store), ApptainerRunner(settings, store), EmbeddedRunner(settings, store)]


def find_runner(settings: Settings, store: Store, prefer: str | None = None, reporter: Reporter = QUIET) -> Runner:
    """The first runner that works here, or the one named.

    Raises:
        RunnerError: none works, or the one named does not; each one's reason is in the message.
    """
    reasons = []
    for runner in runners(settings, store):
        if prefer not in (None, runner.name):
            continue
        reason = runner.available()
        if reason is None:
            return runner
        reasons.append(f"{runner.name}: {reason}")
    if not reasons:
        raise RunnerError(f"no runner named {prefer!r}", f"there are {', '.join(r.name for r in runners(settings, store))}")
    raise RunnerError("no way of running an image was found here: " + "; ".join(reasons), "install or start one of them (builder doctor)")
