"""How many ranks this process starts, and its position among processes that others started."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from typing import NamedTuple

from ..core import RankPosition


class Launch(NamedTuple):
    """What this process, one of ``units`` processes like it, has to start."""

    #: ``single``, ``spawn`` (several ranks: --ranks, --all-gpus) or ``environment`` (builder job, torchrun).
    by: str = "single"
    unit: int = 0
    units: int = 1
    #: Ranks that each unit starts: several only if there is one unit.
    ranks: int = 1
    local_unit: int = 0
    #: Units on this node; 0 means unknown.
    local_units: int = 1
    #: The host of unit 0; empty if there is one unit only.
    address: str = ""
    #: The port on which unit 0 listens. torch's ranks meet on the next one.
    port: int = 0

    def place(self, number: int, folder: str) -> RankPosition:
        """Return the position of a rank.

        Args:
            number: among the ranks of this process.
            folder: for temporary files of this process.
        """
        init_method = "file://" + os.path.join(folder, "meeting")
        if self.units > 1:
            init_method = f"tcp://{self.address}:{self.port + 1}"
        return RankPosition(
            rank=self.unit * self.ranks + number,
            ranks=self.units * self.ranks,
            local_rank=self.local_unit * self.ranks + number,
            local_ranks=self.local_units * self.ranks,
            init_method=init_method,
        )


def plan(options: argparse.Namespace) -> Launch:
    """Return what to start: by the options, or by the variables of builder's jobs and torchrun.

    Raises ValueError if the variables contradict each other.
    """
    if options.ranks is not None and options.ranks < 1:
        raise ValueError(f"--ranks must be at least 1, not {options.ranks}")
    if options.ranks is not None:
        return Launch("spawn" if options.ranks > 1 else "single", ranks=options.ranks)
    if _number("WORLD_SIZE", 1) > 1:
        return _from_variables()
    if _number("SLURM_STEP_NUM_TASKS", 1) > 1:
        raise ValueError("srun started several tasks, but WORLD_SIZE is not set: use builder job")
    count = count_gpus(options.timeout) if options.all_gpus else 1
    return Launch("spawn", ranks=count) if count > 1 else Launch()


def _from_variables() -> Launch:
    env = os.environ
    if "RANK" not in env or "MASTER_ADDR" not in env:
        raise ValueError(f"WORLD_SIZE={env['WORLD_SIZE']}, but RANK or MASTER_ADDR is not set")
    launch = Launch(
        by="environment",
        unit=_number("RANK", 0),
        units=_number("WORLD_SIZE", 1),
        local_unit=_number("LOCAL_RANK", 0),
        local_units=_number("LOCAL_WORLD_SIZE", tasks_of_node()),
        address=env["MASTER_ADDR"],
        port=_number("MASTER_PORT", 29500) + 1,
    )
    if launch.unit >= launch.units:
        raise ValueError(f"rank {launch.unit} of {launch.units} is not possible: ranks begin at 0")
    return launch


def _number(name: str, default: int) -> int:
    """Return the number in an environment variable."""
    value = os.environ.get(name, "")
    if value and not value.isdigit():
        raise ValueError(f"{name}={value} is not a number")
    return int(value) if value else default


def tasks_of_node() -> int:
    """Return the tasks per node, which Slurm writes as ``8(x2)``; 0 if unknown."""
    names = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")
    text = next((os.environ[name] for name in names if os.environ.get(name)), "")
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def count_gpus(limit_s: float) -> int:
    """Return the number of GPUs that torch sees; 0 if this cannot be determined.

    A new process counts them, because a process that has used CUDA cannot fork ranks that use it.
    """
    code = "import torch; n = torch.cuda.device_count(); print(); print(n)"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s / 2, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return 0
    words = done.stdout.split()
    return int(words[-1]) if words and words[-1].isdigit() else 0
