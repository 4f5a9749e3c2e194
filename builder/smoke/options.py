"""The options of a smoke test.

The command line builds them once; every later stage passes them on unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.site.request import NOTHING_ASKED, SlurmRequest
from builder.smoke.suggested import TORCH, SmokePlan

#: For the start and the imports, which the benchmark's own time limit does not count (``--start-stall``).
START_S = 900.0


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """How the benchmark runs, on this host or in a job."""

    runner: str | None = None
    """One of :data:`builder.run.RUNNER_NAMES`; None selects the first one that works.

    Jobs ignore it.
    """
    timeout_s: float = 420
    """Seconds after which the benchmark stops itself and reports what hung."""
    devices: int | None = None
    """GPUs that each node must have; None: at least one if the recipe is for GPUs."""
    all_gpus: bool = False
    """Run one process per GPU, concurrently, and measure communication between them."""
    plan: SmokePlan = TORCH
    """What is tested; :meth:`builder.project.Project.smoke` sets it."""
    device_only: bool = False
    """Skip what is measured once for the host: starts, imports, files, the recipe's command."""
    program: Path | None = None
    """A benchmark's file on this host to use instead of the image's, so that two run the same."""

    @property
    def whole_timeout_s(self) -> float:
        """Seconds for the whole test: the recipe's own command has its time in addition."""
        return self.timeout_s + self.plan.timeout_s

    @property
    def limit_s(self) -> float:
        """Seconds after which a run has ended, with its start."""
        return START_S + self.whole_timeout_s


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """How the benchmark is queued on a site with Slurm."""

    image: str = ""
    """A SIF's path on the site, or an image reference; empty: the runtime finds the target's."""
    is_other: bool = False
    """Whether ``image`` may be another image than the build; the verdict then counts for it."""
    nodes: int = 1
    """With 2 or more nodes the benchmark also measures the network."""
    gpus: int | None = None
    """GPUs per node; None: one on a single node, all of them on several nodes."""
    account: str = ""
    """The account that is charged for the job."""
    time_limit: str = ""
    """The job's time limit in Slurm's notation; empty: the benchmark's own limit, that of its
    start, and five minutes."""
    asked: SlurmRequest = NOTHING_ASKED
    """Partition, QOS and other options in the place of the recipe's."""


#: The default options.
DEFAULTS = SmokeOptions()
