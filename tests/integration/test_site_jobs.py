"""The jobs of all current sites under a real Slurm that has the partitions, QOS, features, GPU types,
accounts and limits of the site (tests/support/slurmsites.py).

What cannot be tried here: a site's own plugins (they refuse short jobs, options, numbers of GPUs; builder
refuses these too, and the table in tests/support/sitetrials.py says where only builder does), ParaStation's
``--mpi=pspmix``, which Debian's Slurm does not have, and options that are younger than Slurm 22.05.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import pytest

from builder.config.queues import QueueName
from builder.config.recipe import Recipe, load_recipe, recipe_files
from builder.config.site import Additions
from builder.config.sitefile import read_site
from builder.config.sites import PACKAGE_FOLDER, yaml_files
from builder.errors import UsageError
from builder.site.build_job import build_job
from builder.site.job import Job, Resources
from builder.site.limits import alternatives, longest_time
from builder.site.plan import plan_job, salloc
from builder.site.render import render
from builder.site.request import JobRequest, SlurmRequest
from builder.site.slurm import find_queue
from tests.integration.conftest import CLONE, Builder
from tests.support.sitetrials import UNKNOWN, Trial, gpu_options, minutes, trials, written
from tests.support.slurm import Slurm
from tests.support.slurmsites import USER, Accounting, FakeSite, fake_site, running_accounting, running_site
from tests.support.spank import plugin

#: The id of every image that podman-hpc has.
IMAGE_ID = "1" * 64
#: A program in the place of a container runtime: each rank records its words and variables.
RUNTIME = f"""\
#!/bin/bash
[[ $* == "images --quiet "* ]] && echo sha256:{IMAGE_ID}
[[ $* == "images --no-trunc "* ]] && echo true sha256:{IMAGE_ID}
[[ " $* " == *" train.py "* ]] || exit 0
name=$RECORD/$SLURM_JOB_ID.$SLURM_PROCID
printf '%s\\0' "${{0##*/}}" "$@" > "$name.words"
env -0 > "$name.env"
"""
#: A program in the place of the Container Engine, with FILE COMMAND...: only ``python`` is in the container.
ENGINE = """\
#!/bin/bash
export EDF=$(<"$1") PATH=${0%/*}/container:$PATH
shift
exec "$@"
"""
RUNTIMES = ("singularity", "apptainer", "podman-hpc")
#: What Slurm says when it refuses a job for its own reasons.
REASONS = re.compile(
    "Requested time limit is invalid|Node count specification invalid|Job violates accounting/QOS policy|"
    "Invalid (partition name|qos|feature|account|generic resource|GRES)|"
    "Requested node configuration is not available"
)
#: Jobs that only Slurm's check is tried of do not start.
LATER = ("--begin=now+1day", "--parsable")


def current_sites() -> dict[str, FakeSite]:
    """Returns the sites of builder that have Slurm and are not switched off."""
    files = yaml_files(PACKAGE_FOLDER)
    sites = {name: read_site(name, files).site for name in files if not name.startswith("_")}
    return {
        name: fake_site(name, site) for name, site in sites.items() if site.slurm and site.status == "current"
    }


SITES = current_sites()


@dataclass
class SiteJobs:
    """The Slurm of a site, its recipes, and a folder to submit jobs from."""

    fake: FakeSite
    recipes: list[Recipe]
    slurm: Slurm
    work: Path
    env: dict[str, str]

    @property
    def recipe(self) -> Recipe:
        return self.recipes[0]

    def request(self, nodes: int, gpus: int) -> JobRequest:
        account = self.fake.account if self.fake.slurm.account != "none" else ""
        image = str(self.work / "image.sif")
        return JobRequest(("python", "train.py"), nodes=nodes, gpus=gpus, account=account, image=image)

    def script(self, request: JobRequest, recipe: Recipe | None = None) -> Path:
        """Writes the script of a job."""
        path = self.work / "job.sh"
        path.write_text(render(plan_job(recipe or self.recipe, request)))
        return path

    def refusal(self, *options: str | Path) -> str:
        """Submits a job that starts later. Returns why Slurm refuses it; empty: Slurm accepts it."""
        done = self.slurm.run("sbatch", *LATER, *options, cwd=self.work, check=False)
        if done.returncode and not REASONS.search(done.stderr):
            pytest.fail(f"sbatch {shlex.join(map(str, options))}:\n{done.stderr}{self.slurm.log()}")
        return done.stderr if done.returncode else ""

    def finish(self, script: Path) -> str:
        """Runs a job to its end, which must be COMPLETED."""
        number = self.slurm.submit(script, env=self.env, cwd=self.work)
        states = self.slurm.wait(number)
        output = "".join(path.read_text() for path in self.work.glob(f"*-{number}.out"))
        assert states == ["COMPLETED"], f"{states}:\n{output}\n{script.read_text()}"
        return number

    def records(self, job: str) -> dict[int, tuple[list[str], dict[str, str]]]:
        """Returns the words and variables that each rank of a job recorded."""
        found = {}
        for path in (self.work / "records").glob(f"{job}.*.words"):
            words = path.read_text().split("\0")[:-1]
            env = path.with_suffix(".env").read_text().split("\0")[:-1]
            found[int(path.name.split(".")[1])] = (words, dict(entry.split("=", 1) for entry in env))
        return found


@pytest.fixture(scope="module")
def accounting() -> Iterator[Accounting]:
    with running_accounting(list(SITES.values())) as part:
        programs = part.folder / "bin"
        (programs / "container").mkdir(parents=True)
        stand_ins = {**dict.fromkeys((*RUNTIMES, "container/python"), RUNTIME), "edf": ENGINE}
        for name, text in stand_ins.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        yield part


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Recipe]]:
    """The recipes of each site; a site without one has a minimal one."""
    found: dict[str, list[Recipe]] = {name: [] for name in SITES}
    for target in recipe_files(CLONE):
        recipe = load_recipe(target, CLONE)
        if recipe.site.name in found:
            found[recipe.site.name].append(recipe)
    root = tmp_path_factory.mktemp("project")
    (root / "recipes").mkdir()
    (root / "environments").mkdir()
    (root / "environments" / "any.yml").write_text("dependencies: [python]\n")
    for name in [name for name, own in found.items() if not own]:
        text = f"site: {name}\nenvironment: environments/any.yml\n"
        (root / "recipes" / f"{name}.yaml").write_text(text)
        found[name].append(load_recipe(name, root))
    return found


@pytest.fixture(scope="module", params=list(SITES))
def site(
    request: pytest.FixtureRequest, accounting: Accounting, recipes: dict[str, list[Recipe]]
) -> Iterator[SiteJobs]:
    fake = SITES[request.param]
    with running_site(fake, accounting) as slurm:
        work = slurm.folder / "work"
        for folder in (work, work / "records"):
            folder.mkdir()
            folder.chmod(0o777)
        (work / "image.sif").touch()
        folders = dict.fromkeys(("HOME", "SCRATCH", "SCRATCHDIR", "PROJECTDIR", "SLURM_TMPDIR"), str(work))
        env = {
            **folders,
            "PATH": f"{accounting.folder}/bin:{slurm.env['PATH']}",
            "USER": USER,
            "RECORD": str(work / "records"),
            "BASH_FUNC_module%%": '() { echo "$@" >> "$RECORD/modules"; }',
        }
        yield SiteJobs(fake, recipes[fake.name], slurm, work, env)


def kinds(site: SiteJobs) -> dict[QueueName, JobRequest]:
    """Returns a job of each kind that builder knows for this site."""
    gpus = site.fake.main.gpus
    found: dict[QueueName, JobRequest] = {}
    if gpus:
        found |= {"node": site.request(1, gpus), "nodes": site.request(2, gpus)}
    part = site.fake.slurm.partitions.get(find_queue(site.fake.site, "gpu").partition)
    if gpus > 1 and (part is None or not part.gpu_counts or 1 in part.gpu_counts):
        found["gpu"] = site.request(1, 1)
    if not gpus or "cpu" in site.fake.slurm.queues:
        found["cpu"] = site.request(1 if gpus else 2, 0)
    return found


def test_kinds(site: SiteJobs) -> None:
    """Slurm accepts each kind of job of each recipe, and a chain of them."""
    for recipe in site.recipes:
        for kind, request in kinds(site).items():
            for chain in (None, 3) if kind == "node" else (None,):
                script = site.script(replace(request, chain=chain), recipe)
                assert not site.refusal(script), f"{recipe.name}, {kind}"


def test_build(site: SiteJobs) -> None:
    """Slurm accepts an image build on a compute node, but not one that is longer than its queue allows."""
    slurm, account = site.fake.slurm, site.fake.account
    queue = find_queue(site.fake.site, "build")
    if slurm.partitions and queue.partition not in slurm.partitions:
        with pytest.raises(UsageError, match="has no partition for this kind of job"):
            build_job(site.recipe, ["true"], account=account)
        return
    words = build_job(site.recipe, ["true"], account=account)[1:]
    options = list(takewhile(lambda word: word.startswith("--"), words))
    assert not site.refusal(*options, "--wrap=true"), options
    longest = longest_time(slurm, queue, nodes=1)
    if longest:
        long = written(minutes(longest) + 1)
        assert site.refusal(*options, f"--time={long}", "--wrap=true")
        with pytest.raises(UsageError, match="--time"):
            build_job(site.recipe, ["true"], account=account, time=long)


def test_interactive(site: SiteJobs) -> None:
    """salloc allocates a whole node."""
    words = salloc(site.recipe, site.request(1, site.fake.main.gpus)).allocate
    reserved = next((w.partition("=")[2] for w in words if w.startswith("--reservation=")), "")
    user, site.slurm.user = site.slurm.user, ()
    if reserved:
        values = [
            f"ReservationName={reserved}",
            "Nodes=node1",
            "StartTime=now",
            "Duration=60",
            f"Users={USER}",
        ]
        site.slurm.run("scontrol", "create", "reservation", *values)
    site.slurm.user = user
    done = site.slurm.run(*words, "--no-shell", cwd=site.work)
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert granted, done.stderr
    site.slurm.run("scancel", granted[1])
    site.slurm.wait(granted[1])
    if reserved:
        site.slurm.user = ()
        site.slurm.run("scontrol", "delete", f"ReservationName={reserved}")
        site.slurm.user = user


def test_run(site: SiteJobs) -> None:
    """A job on two nodes runs: all ranks start the container with what the site file says."""
    if site.fake.site.runtime.kind == "edf":
        add_container_engine(site)
    request = site.request(2, site.fake.main.gpus)
    check_run(site, request)
    if site.fake.site.mpi and site.fake.site.launcher != "mpi":
        check_run(site, replace(request, launcher="mpi"))


def add_container_engine(site: SiteJobs) -> None:
    """Adds the option ``--environment`` to srun, which starts :data:`ENGINE` for each rank."""
    engine = site.env["PATH"].partition(":")[0] + "/edf"
    line = f"required {plugin(site.slurm.folder)} {engine}\n"
    (site.slurm.folder / "plugstack.conf").write_text(line)


def check_run(site: SiteJobs, request: JobRequest) -> None:
    described = site.fake.site
    job = plan_job(site.recipe, request)
    assert isinstance(job, Job)
    script = site.script(request)
    text = script.read_text().replace("--mpi=pspmix", "--mpi=pmi2")
    script.write_text(re.sub(r'(export HOME="?)/', rf"\1{site.work}/", text))
    (site.work / "records" / "modules").unlink(missing_ok=True)
    records = site.records(site.finish(script))
    assert set(records) == set(range(job.resources.nodes * job.resources.tasks))
    additions: list[Additions] = [described.fabric]
    if described.mpi and (request.launcher or described.launcher) == "mpi":
        additions.append(described.mpi)
    for words, env in records.values():
        if described.runtime.kind == "edf":
            assert words == ["python", "train.py"] and 'image = "${BUILDER_IMAGE}"' in env["EDF"]
        else:
            assert words[0] == described.runtime.command and words[-2:] == ["python", "train.py"]
            assert env["BUILDER_IMAGE"] in words
        assert env["BUILDER_IMAGE"] in (request.image, IMAGE_ID)
        assert env["MASTER_ADDR"].startswith("node1")
        for wrapper in (described.runtime.wrapper, *(a.wrapper for a in additions)):
            assert set(wrapper) <= set(words)
        if described.proxy:
            assert env["https_proxy"] == env["http_proxy"] == described.proxy.url
        if described.runtime.home:
            assert env["HOME"].startswith(f"{site.work}/") and Path(env["HOME"]).is_dir()
    modules = dict.fromkeys([*described.modules, *(m for a in additions for m in a.modules)])
    loaded = site.work / "records" / "modules"
    lines = loaded.read_text().splitlines() if loaded.exists() else []
    assert {line for line in lines if line.startswith("load ")} == {f"load {m}" for m in modules}


def test_limits(site: SiteJobs) -> None:
    """Slurm and builder accept a job at each limit, and refuse one beyond it or with unknown names.

    Where builder names another place for a refused job, Slurm accepts it there.
    """
    table = trials(site.fake)
    assert table
    problems = [problem for trial in table for problem in wrong(site, trial)]
    assert not problems, "\n".join(problems)


def wrong(site: SiteJobs, trial: Trial) -> Iterator[str]:
    """Yields what is not as the trial says."""
    message = ""
    try:
        plan_job(site.recipe, trial.request)
    except UsageError as error:
        message = str(error)
    named = any(key in message.lower() for key in trial.change)
    if bool(message) != trial.builder or (message and not named):
        yield f"{trial.what} {trial.change}: builder says {message or 'nothing'}"
    if trial.slurm or not trial.builder:
        refusal = site.refusal(*gpu_options(trial, site.fake.slurm.gpus), site.script(trial.base))
        if bool(refusal) != trial.slurm:
            yield f"{trial.what} {trial.change}: Slurm says {refusal.strip() or 'nothing'}"
    if trial.builder and trial.slurm and trial.change.keys() <= {"nodes", "time"}:
        yield from wrong_alternatives(site, trial)


def wrong_alternatives(site: SiteJobs, trial: Trial) -> Iterator[str]:
    """Yields places that builder names for a refused job, but Slurm refuses it there too."""
    request = trial.request
    resources = Resources(request.nodes, request.gpus or 0, tasks=1)
    for place in alternatives(site.recipe, resources, request.time)[:1]:
        there = replace(request, slurm=SlurmRequest(partition=place.partition, qos=place.qos))
        if refusal := site.refusal(site.script(there)):
            yield f"{trial.what} {trial.change}: in {place}, Slurm says {refusal.strip()}"


@pytest.mark.parametrize("site", ["lumi-g"], indirect=True)
def test_command(site: SiteJobs, accounting: Accounting) -> None:
    """``builder job --submit`` submits a job, and reports why Slurm refuses another."""
    login = accounting.folder / "login"
    login.mkdir()
    (login / "sbatch").write_text(f'#!/bin/sh\nexec {shlex.join(site.slurm.user)} /usr/bin/sbatch "$@"\n')
    (login / "sbatch").chmod(0o755)
    env = {**os.environ, **site.slurm.env, **site.env, "PATH": f"{login}:{site.env['PATH']}"}
    env["PYTHONPATH"] = str(CLONE)

    def submit(account: str) -> subprocess.CompletedProcess[str]:
        words = ["job", site.recipe.name, "--account", account, "--image", str(site.work / "image.sif")]
        command = Builder(site.recipe.root, site.work / "cache").command(*words, "--submit", "--", "train.py")
        return subprocess.run(command, env=env, cwd=site.work, capture_output=True, text=True)

    done = submit(site.fake.account)
    assert done.returncode == 0, done.stderr
    assert site.slurm.wait(done.stdout.strip()) == ["COMPLETED"]
    refused = submit(UNKNOWN)
    assert refused.returncode == 2 and "has no account of this form" in refused.stderr
    refused = submit("project_465999999")
    assert refused.returncode == 10 and "Slurm rejected the job: " in refused.stderr
    assert "Invalid account or account/partition combination" in refused.stderr
