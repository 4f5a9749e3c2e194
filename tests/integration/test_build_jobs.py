"""``builder build --all --on slurm``: a real Slurm builds the targets of a project on two nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder.formats.oci.layout import list_tags
from tests.support.documents import checked
from tests.support.parts import wait_for
from tests.support.project import TinyProject, tiny_channel, tiny_project, whole
from tests.support.slurm import Slurm

CLONE = Path(__file__).parents[2]
RECIPE = """\
extends: tiny
env: {{NUMBER: "{number}"}}
site:
  title: Here
  node: {{cores: 2, tasks: 2}}
  slurm:
    account: none
    queues:
      build: {{partition: debug, time: "00:05:00", cpus_per_task: 1}}
"""


@pytest.fixture
def project(tmp_path: Path) -> TinyProject:
    """Three targets; the last one has a step that fails."""
    made = tiny_project(tmp_path, tiny_channel(tmp_path / "channel").as_uri())
    for number in (1, 2):
        (made.recipe.parent / f"t{number}.yaml").write_text(RECIPE.format(number=number))
    failing = RECIPE.format(number=3) + "steps: [{run: exit 3}]\n"
    (made.recipe.parent / "t3.yaml").write_text(failing)
    return made


def start(project: TinyProject, slurm: Slurm, *args: str) -> subprocess.Popen[str]:
    variables = {**project.variables(), **slurm.env, "HOME": str(project.root), "PYTHONPATH": str(CLONE)}
    words = [sys.executable, "-m", "builder", "--project", str(project.root), "build", *args]
    return subprocess.Popen(
        [*words, "--on", "slurm"], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_three_targets(project: TinyProject, slurm: Slurm) -> None:
    """Two are built, one fails in the job: one table, the exit code of the failure, and its messages."""
    names = ["t1", "t2", "t3"]
    process = start(project, slurm, *names, "--json")
    out, errors = process.communicate(timeout=600)
    answers = {answer["target"]: answer for answer in checked(json.loads(out))}
    assert [answers[name]["state"] for name in names] == ["built", "built", "failed"], errors
    assert process.returncode == answers["t3"]["code"] != 0
    layout = project.root / "dist"
    assert list_tags(layout) == {name: answers[name]["digest"] for name in ("t1", "t2")}
    for name in ("t1", "t2"):
        whole(layout, answers[name]["digest"])
    assert answers["t3"]["error"] and Path(answers["t3"]["log"]).read_text()
    assert not list(layout.glob("build-*"))
    (project.recipe.parent / "tiny.yaml").rename(project.recipe.parent / "_tiny.yaml")
    for name in names:
        path = project.recipe.parent / f"{name}.yaml"
        path.write_text(path.read_text().replace("extends: tiny", "extends: _tiny"))
    process = start(project, slurm, "--all")
    table, errors = process.communicate(timeout=600)
    assert process.returncode == answers["t3"]["code"], errors
    rows = {line.split()[0]: line for line in table.splitlines() if not line.startswith(" ")}
    assert list(rows) == ["target", *names]
    assert f"built   {answers['t1']['digest'][:19]} " in rows["t1"] and "failed" in rows["t3"]
    assert "1 of 3 targets failed: t3" in errors


def test_interrupt(project: TinyProject, slurm: Slurm, tmp_path: Path) -> None:
    """Ctrl-C cancels the jobs."""
    waiting = "setup: [sleep 3600]\n"
    for name in ("t1", "t2"):
        path = project.recipe.parent / f"{name}.yaml"
        path.write_text(path.read_text().replace("  slurm:\n", f"  {waiting}  slurm:\n"))
    process = start(project, slurm, "t1", "t2")
    log = tmp_path / "log"
    log.touch()

    def running() -> bool:
        listed = slurm.run("squeue", "--noheader", "--name=builder-build", "--format=%T").stdout
        return listed.split() == ["RUNNING", "RUNNING"]

    wait_for(running, process, log, "the jobs", 300)
    numbers = slurm.run("squeue", "--noheader", "--name=builder-build", "--format=%A").stdout.split()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert [slurm.wait(number) for number in numbers] == [["CANCELLED"]] * 2
