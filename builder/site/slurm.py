"""Handing a script to Slurm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from builder.errors import RunnerError


def submit(script: str, *, folder: Path | None = None) -> str:
    """Queues a batch script with sbatch; gives the job's id.

    Args:
        folder: the folder that the job starts in; this one by default.

    Raises:
        RunnerError: no sbatch here, or Slurm refuses the job; its reason is in the message.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, cwd=folder, check=False
        )
    except FileNotFoundError:
        raise RunnerError(
            "sbatch is not on this machine: there is no Slurm to queue the job",
            "write the script with --output FILE, take it to the site's login node and run sbatch FILE",
        ) from None
    except OSError as e:
        raise RunnerError(
            f"sbatch cannot be run: {e.strerror}", "see whether the site's Slurm works: sinfo"
        ) from None
    found = re.search(r"^(\d+)(;|$)", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        said = [
            line.removeprefix("sbatch: ").removeprefix("error: ")
            for line in done.stderr.splitlines()
            if line.strip()
        ]
        raise RunnerError(
            f"Slurm refused the job: {'; '.join(said) or f'sbatch ended with {done.returncode}'}",
            "correct the account, queue or size it names (site.slurm in the recipe), and submit again",
        )
    return found[1]
