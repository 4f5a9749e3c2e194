"""Steps in docker and podman: a container that is committed, and its topmost layer, normalised."""

from __future__ import annotations

from builder.errors import RunnerError
from builder.model import Layer
from builder.steps.job import Job


def first_engine(problem: str) -> str:
    """Returns the first engine that works; ``problem``: why the user-namespace runner does not.

    Raises:
        RunnerError: None works.
    """
    raise RunnerError(
        f"a build step needs a runner, and none works on this host:\n  userns: {problem}",
        "builder doctor shows the state of each runner",
    )


def run_in_engine(name: str, job: Job) -> Layer:
    """Runs a step in a container engine."""
    raise RunnerError(f"{name} does not run build steps yet", "use userns")
