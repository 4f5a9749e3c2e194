"""The same job from every session: three versions of Slurm, a SIF that Apptainer runs, and real CPU binding.

A step or an allocation leaves variables that srun of another job would obey. A job prints its cores, its
memory and its variables, and does so in the same way wherever it comes from.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from builder.core.datafiles import table
from builder.deliver.site import slurm as site_slurm
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.recipe import Recipe, load_recipe
from tests.support.install_registries import SLURM_SUITES, install_slurm
from tests.support.parts import CLONE, Apptainer, installed, part_missing
from tests.support.rootfs import make_rootfs
from tests.support.slurm import NODES, REAL, RELEASES, Slurm, running_slurm

INHERITED = table(site_slurm.__file__, "inherited.yaml")
RECIPE = """\
base: debian:bookworm
python: base
environment: requirements.txt
format: sif
smoke: {{none: not here}}
site:
  title: Sessions
  images: {images}
  runtime: {{kind: apptainer, clean_env: true}}
  node: {{cores: 2, tasks: 1}}
  local: /mnt/$SLURM_JOB_ID
  setup: {setup}
  slurm:
    account: none
    time: "00:10:00"
    queues: {{cpu: {{memory: 300M}}}}
"""
#: Beside Apptainer on this site: prints what srun gives to a process. Values that each job has for itself are
#: left out, and their lines are in one order.
WRAPPER = r"""#!/bin/bash
set -e
scontrol --oneliner show step "$SLURM_JOB_ID.$SLURM_STEP_ID" | sed -E 's/.* TRES=([^ ]*).*/step \1/'
taskset -p $$ | sed 's/.*current/cpu/'
env -0 | tr '\n\0' ' \n' | LC_ALL=C sort |
    sed -n -E 's/^((SLURM|SRUN|SALLOC|PMI|PALS|BUILDER|MASTER)[^=]*=)/host \1/p'
exec {apptainer} "$@"
"""
#: In the container. The job ends when nobody holds it.
PROGRAM = (
    'env -0 | sort -z | while IFS= read -r -d "" line; do case $line in SLURM_*|RANK=*|WORLD_SIZE=*|TOKEN=*) '
    'echo "container $line";; esac; done; echo shown; while [ -e hold ]; do sleep 0.2; done'
)
#: Each job has its own: numbers of jobs, processes and ports, times, and where it was submitted.
OWN = re.compile(
    r"SLURM_(JOB_?ID|JOB_SLUID|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|JOB_(START|END)_TIME|SUBMIT_HOST|RESTART_COUNT)"
    r"|BUILDER_JOB_ID|MASTER_PORT"
)


@dataclass
class Site:
    """A Slurm, a folder to submit from, and the target's recipe."""

    slurm: Slurm
    work: Path
    recipe: Recipe

    def write(self, **request: object) -> None:
        """Writes job.sh."""
        job = plan_job(self.recipe, JobRequest(("bash", "-c", PROGRAM), **request))  # type: ignore[arg-type]
        (self.work / "job.sh").write_text(render(job))

    def submit(self, *options: str, session: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
        """Submits job.sh in a session, and returns the job's number."""
        words = [*session, "sbatch", "--parsable", *options, "job.sh"]
        return self.slurm.run(*words, env=env, cwd=self.work).stdout.split()[-1]

    def log(self, job: str) -> str:
        file = self.work / f"sessions-{job}.out"
        return file.read_text() if file.exists() else ""

    def finished(self, job: str) -> str:
        """Waits for a job that must succeed, and returns its log."""
        states = self.slurm.wait(job)
        assert states == ["COMPLETED"], f"{states}\n{self.log(job)}"
        return self.log(job)

    def wait_for_run(self, job: str, restart: int) -> None:
        """Waits until a run of the job has printed all. A requeued job would wait for two minutes."""
        end = time.monotonic() + 300
        while self.log(job).count("shown\n") <= restart:
            assert time.monotonic() < end, f"{self.slurm.show(job)}\n{self.log(job)}"
            if self.slurm.states(job) == ["PENDING"]:
                self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
            for _ in range(10):
                if self.log(job).count("shown\n") <= restart:
                    time.sleep(0.3)


def shown(log: str) -> list[str]:
    """What a job or one of its runs has printed, without the values that are its own."""
    # Slurm chooses the node: the first one may have another job's end.
    lines = re.sub(r"\bnode[12]\b", "node", log.partition("shown\n")[0]).splitlines()[1:]
    kept = [line for line in lines if line.startswith(("step ", "cpu ", "host ", "container "))]
    return [line for line in kept if not OWN.fullmatch(line.split(" ", 1)[1].partition("=")[0])]


@pytest.fixture(scope="module", params=RELEASES, ids=RELEASES.values())
def site(
    apptainer: Apptainer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site with each release of Slurm."""
    if (os.cpu_count() or 1) < 2:
        part_missing("a job of two cores needs two")
    folder = tmp_path_factory.mktemp("sessions")
    programs = ("sh", "bash", "env", "sort", "sleep")
    make_rootfs(folder / "images/sessions.sif", programs)
    (folder / "bin").mkdir()
    (folder / "bin/apptainer").write_text(WRAPPER.replace("{apptainer}", str(apptainer.path)))
    (folder / "bin/apptainer").chmod(0o755)
    variables = {**apptainer.env, "HOME": folder, "PATH": f"{folder}/bin:{apptainer.env['PATH']}"}
    with running_slurm(request.param, REAL) as slurm:
        variables["PATH"] = f"{folder}/bin:{slurm.env['PATH']}"
        setup = [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
        (folder / "recipes").mkdir()
        text = RECIPE.format(images=folder / "images", setup=setup)
        (folder / "recipes/sessions.yaml").write_text(text)
        (folder / "requirements.txt").write_text("six\n")
        work = folder / "work"
        work.mkdir()
        yield Site(slurm, work, load_recipe("sessions", folder))


@pytest.fixture(scope="module")
def expected(site: Site) -> list[str]:
    """What the job prints from a login shell."""
    site.write()
    lines = shown(site.finished(site.submit()))
    assert "cpu affinity mask: 3" in lines and "step cpu=2,mem=300M,node=1" in lines
    assert {"container SLURM_CPUS_PER_TASK=2", "container RANK=0", "container WORLD_SIZE=1"} <= set(lines)
    return lines


STEP = ("srun", "-n1", "-c1", "--mem=100", "-m", "block:cyclic", "-K", "-u", "--overlap")
ALLOCATION = ("salloc", "--quiet", "-n1", "--mem-per-cpu=100", "--hint=nomultithread", "--overcommit")


@pytest.mark.parametrize(
    ("session", "options", "env"),
    [
        (STEP, (), {}),
        ((*STEP, "--gpus=h100:2", "--gpu-bind=closest"), (), {}),
        (ALLOCATION, (), {}),
        ((*ALLOCATION, *STEP), (), {}),
        ((), (), {"SBATCH_EXPORT": "NONE"}),
        ((), ("--export=NONE",), {}),
        (STEP, ("--export=NIL",), {}),
    ],
    ids=[
        "step",
        "GPUs",
        "allocation",
        "step of an allocation",
        "SBATCH_EXPORT",
        "export",
        "export of a step",
    ],
)
def test_session(
    session: Sequence[str], options: Sequence[str], env: Mapping[str, str], site: Site, expected: list[str]
) -> None:
    """A job is the same from each session."""
    site.write()
    assert shown(site.finished(site.submit(*options, session=session, env=env))) == expected


def test_requeued(site: Site, expected: list[str]) -> None:
    """A job that runs three times prints the same each time, into one log."""
    site.write(slurm=site_slurm.read_slurm(["--requeue"]))
    hold = site.work / "hold"
    hold.touch()
    try:
        job = site.submit(session=STEP)
        for restart in range(3):
            if restart:
                site.slurm.run("scontrol", "requeue", job)
            site.wait_for_run(job, restart)
    finally:
        hold.unlink()
    runs = re.split(r"(?m)^(?=job \d+, restart)", site.finished(job))[1:]
    assert [run.splitlines()[0] for run in runs] == [f"job {job}, restart {number}" for number in range(3)]
    assert [shown(run) for run in runs] == [expected] * 3


#: What sbatch itself reads, which a job may have: valid values.
READ = {
    "SBATCH_MEM_BIND": "local",
    "SLURM_CPU_BIND": "mask_cpu:1",
    "SLURM_DEBUG_FLAGS": "Steps",
    "SLURM_HINT": "nomultithread",
    "SLURM_UMASK": "0022",
}


def test_all_variables(site: Site, expected: list[str]) -> None:
    """No variable of the list reaches a process with the value of the session."""
    names = [*INHERITED["unset"], *INHERITED["options"]]
    names.remove("SLURM_HOSTFILE")  # sbatch opens it
    names += ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_NTASKS_HET_GROUP_0"]
    env = {name.replace("_*", "_X").rstrip("*"): "7" for name in names} | READ
    site.write()
    log = site.finished(site.submit(env=env))
    assert shown(log) == expected and re.match(r"job \d+, restart 0\n", log)


def test_submit(site: Site, expected: list[str]) -> None:
    """builder submits from a step; sbatch gets no option of the environment, and the user reads which."""
    env = {"SBATCH_EXPORT": "NONE", "SBATCH_PARTITION": "nosuch", "SLURM_HINT": "multithread"}
    command = [sys.executable, "-m", "builder", "--project", site.work.parent, "job", "sessions", "--submit"]
    words = [*STEP, "env", f"PYTHONPATH={CLONE}", *command, "--", "bash", "-c", PROGRAM]
    done = site.slurm.run(*words, env=env, cwd=site.work)
    assert shown(site.finished(done.stdout.strip())) == expected
    assert "SBATCH_PARTITION does not apply to this job: pass --slurm=--partition=nosuch" in done.stderr
    assert "SLURM_" not in done.stderr


def test_own_options(site: Site) -> None:
    """What the script's own options set wins over the session."""
    own = {
        "ACCTG_FREQ": "30",
        "DISTRIBUTION": "block:block",
        "HINT": "nomultithread",
        "MEM_PER_CPU": "150",
        "NTASKS_PER_SOCKET": "1",
        "OVERCOMMIT": "1",
    }
    options = [f"--{name.lower().replace('_', '-')}={value}" for name, value in own.items() if value != "1"]
    site.write(slurm=site_slurm.read_slurm([*options, "--ntasks-per-socket=1", "--overcommit"]))
    session = [f"SLURM_{name}" for name in own if name != "HINT"]  # which sbatch prefers to the script's
    env = dict.fromkeys([*session, "SLURM_MEM_PER_NODE"], "7")
    lines = site.finished(site.submit(env=env)).splitlines()
    assert {f"host SLURM_{name}={value}" for name, value in own.items()} <= set(lines)
    assert "step cpu=2,mem=300M,node=1" in lines


def test_ranks(site: Site) -> None:
    """Each rank on two nodes has its own core, also in a job of a step; data is unpacked on both nodes."""
    with tarfile.open(site.work / "set.tar", "w") as tar:
        tar.add(site.work.parent / "requirements.txt", "file")
    site.write(nodes=2, tasks=2, data="set.tar")
    lines = site.finished(site.submit(session=STEP)).splitlines()
    assert sorted(line for line in lines if line.startswith("container RANK=")) == [
        f"container RANK={rank}" for rank in range(4)
    ]
    masks = ["cpu affinity mask: 1", "cpu affinity mask: 2"]
    assert sorted(line for line in lines if line.startswith("cpu ")) == sorted(2 * masks)
    assert not [path for node in NODES for path in site.slurm.disk(node).rglob("file")]


@pytest.mark.parametrize("options", [("--export=NONE",), ("--export=TOKEN",)], ids=["missing", "passed"])
def test_host_variable(options: Sequence[str], site: Site) -> None:
    """A variable of the submitting shell that sbatch does not pass is an error, which says what to type."""
    site.write(env={"TOKEN": None})
    job = site.submit(*options, env={"TOKEN": "a 'b' $c"})
    if options == ("--export=TOKEN",):
        assert "container TOKEN=a 'b' $c\n" in site.finished(job)
        return
    assert site.slurm.wait(job) == ["FAILED"]
    assert site.log(job).splitlines()[1:] == [
        "--env TOKEN: sbatch --export=NONE does not pass it; type: sbatch --export=TOKEN FILE"
    ]


def test_arrays(site: Site) -> None:
    """A job array has its own variables, although the script names no array."""
    site.write()
    job = site.submit("--array=3-3", env={"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_JOB_ID": "9"})
    assert {"container SLURM_ARRAY_TASK_ID=3", f"container SLURM_ARRAY_JOB_ID={job}"} <= set(
        site.finished(job).splitlines()
    )


#: What srun(1) names, and a job keeps: of its own, of the cluster, and of the user.
KEPT = {
    *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_ACCOUNT", "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_MPI_TYPE"),
    *("PMI_FANOUT", "PMI_FANOUT_OFF_HOST", "PMI_TIME"),
}


@pytest.mark.parametrize("suite", SLURM_SUITES)
def test_manual(suite: str) -> None:
    """The list has each variable that srun reads, as its manual page says."""
    programs = installed(install_slurm, f"slurm-{suite}")
    page = gzip.decompress((programs.parent / "usr/share/man/man1/srun.1.gz").read_bytes()).decode()
    section = page.replace("\\", "").partition('INPUT ENVIRONMENT VARIABLES"')[2].partition(".SH")[0]
    named = set(re.findall(r"(?m)^fB((?:SLURM|SRUN|PMI)\w+)fR", section)) - KEPT
    known = [*INHERITED["unset"], *INHERITED["options"]]
    assert len(named) > 80
    assert not {name for name in named if not any(fnmatch(name, pattern) for pattern in known)}


GOLDEN = [path for path in sorted((CLONE / "tests/golden").glob("*.sh")) if "#SBATCH" in path.read_text()]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_scripts(site: Site, path: Path) -> None:
    """sbatch knows each option of each site's script; this Slurm has neither its partitions nor its nodes."""
    done = site.slurm.run("sbatch", "--test-only", path, check=False, cwd=site.work)
    known = r"partition|node|feature|generic resource|GRES|constraint|time|Memory|CPU|processors|to start at"
    assert re.search(known, done.stderr), done.stderr
    assert not re.search("unrecognized option|nvalid option|Invalid directive", done.stderr), done.stderr
