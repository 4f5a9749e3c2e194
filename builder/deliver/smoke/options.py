"""The options of a smoke test.

The command line builds them once; every later stage passes them on unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.deliver.site.request import JobRequest

from .suggested import TORCH, SmokePlan

#: For the start and the imports, which the benchmark's own time limit does not count (``--start-stall``).
START_S = 900.0


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """How the benchmark runs, on this host or in a job.

    Attributes:
        runner: one of :data:`builder.build.run.RUNNER_NAMES`; None selects the first one that
            works. Jobs ignore it.
        timeout_s: seconds after which the benchmark stops itself and reports what hung.
        devices: number of GPUs that each node must have; None: at least one if the recipe is for
            GPUs.
        all_gpus: run one process per GPU, concurrently, and measure communication between them.
        plan: what is tested; :meth:`builder.deliver.project.Project.smoke` sets it.
        device_only: skip what is measured once for the host: starts, imports, files, the recipe's
            command.
        program: a benchmark's file on this host to use instead of the image's, so that two run the
            same; None: the image's.
    """

    runner: str | None = None
    timeout_s: float = 420
    devices: int | None = None
    all_gpus: bool = False
    plan: SmokePlan = TORCH
    device_only: bool = False
    program: Path | None = None

    @property
    def whole_timeout_s(self) -> float:
        """Seconds for the whole test: the recipe's own command has its time in addition."""
        return self.timeout_s + self.plan.timeout_s

    @property
    def limit_s(self) -> float:
        """Seconds after which a run has ended, with its start."""
        return START_S + self.whole_timeout_s


@dataclass(frozen=True, slots=True)
class SlurmOptions(JobRequest):
    """How the benchmark is queued on a site with Slurm: the request without a command.

    With 2 or more nodes the benchmark also measures the network. Without a time limit, the job has
    the benchmark's own one, that of its start, and five minutes.
    """

    is_other: bool = False
    """Whether ``image`` may be another image than the build; the verdict then counts for it."""


#: The default options.
DEFAULTS = SmokeOptions()
