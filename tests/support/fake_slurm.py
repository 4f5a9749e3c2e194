"""Commands with the names of Slurm's that answer from files."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from tests.support.reports import A100_40, ranked, report

FAKE = """\
#!{python} -IS
import json, os, pathlib, re, sys
state = pathlib.Path({state!r})
name = pathlib.Path(sys.argv[0]).name
(state / "calls").open("a").write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "sbatch":
    script = sys.stdin.read()
    (state / "script").write_text(script)
    (state / "cwd").write_text(os.getcwd())
    if (state / "output").exists() and (state / "output").read_text():
        pathlib.Path("smoke-gpu-4711.out").write_text((state / "output").read_text())
    print("4711")
elif name == "scontrol":
    states = (state / "states").read_text().split()
    if states[0] == "silence":
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
    if states[0] == "forgotten":
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(f"JobId=4711 JobState={{states[0]}} Reason=Priority Dependency=(null)")
    if len(states) > 1:
        (state / "states").write_text(" ".join(states[1:]))
    else:
        cwd = pathlib.Path((state / "cwd").read_text())
        if (state / "image.sha256").exists():
            (cwd / "image.sha256").write_text((state / "image.sha256").read_text())
        report = re.search(r"--json (\\S+)", (state / "script").read_text())
        if report and (state / "report").exists():
            (state / "report").rename(cwd / report[1])
            if (state / "locks").exists():
                written = json.loads((cwd / report[1]).read_text())
                written["facts"]["locks"] = (state / "locks").read_text().split()
                (cwd / report[1]).write_text(json.dumps(written))
"""


def put_fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts commands named like Slurm's into PATH; returns their state folder.

    ``states`` in it are the states of the job, ``report`` is the report that it writes, ``output`` its log,
    ``image.sha256`` and ``locks`` are what it reports of its image: see :func:`ran`. The commands write
    ``calls``, and sbatch ``script`` and ``cwd``.
    """
    bin, state = folder / "bin", folder / "slurm"
    bin.mkdir()
    state.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        (bin / name).write_text(FAKE.format(python=sys.executable, state=str(state)))
        (bin / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    (state / "states").write_text("PENDING RUNNING COMPLETED")
    return state


def leave_pass(state: Path, ranks: int = 1) -> None:
    """Makes the job write the report of this many GPUs that pass."""
    devices = [{**A100_40, "rank": i} for i in range(ranks)]
    passed = report([ranked("matmul.bf16", [248e3] * ranks)], devices=devices, ranks=ranks)
    (state / "report").write_text(json.dumps(passed))


def ran(state: Path, sif: str = "", *locks: str) -> None:
    """Makes the job report the sha256 of the SIF that it ran, and of the lock files in it."""
    if sif:
        (state / "image.sha256").write_text(f"{sif.removeprefix('sha256:')}  -\n")
    (state / "locks").write_text(" ".join(sorted(set(locks))))
