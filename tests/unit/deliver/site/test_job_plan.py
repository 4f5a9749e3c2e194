"""Jobs and commands of the shipped recipes: values of the sites' documentation, and invalid requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job_plan import plan_job
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.lock.config.queues import Slurm
from builder.lock.config.recipe import Files, load_recipe
from builder.lock.config.site import Fabric, Gpu, NodeHardware, Runtime, Site
from tests.support.image_kit import recipe as made_recipe

ROOT = Path(__file__).parents[4]

#: An account of LUMI's form.
LUMI = "project_465000000"


def script(target: str, *command: str, **request: Any) -> str:
    recipe = load_recipe(target, ROOT)
    return render(plan_job(recipe, JobRequest(command=command or ("python", "train.py"), **request)))


def request_error(target: str, **request: Any) -> UsageError:
    """Plans an invalid job and returns the error."""
    account = LUMI if target == "lumi-g" else "z19"
    with pytest.raises(UsageError) as caught:
        script(target, **{"account": account, **request})
    return caught.value


@pytest.mark.parametrize(
    ("target", "request_", "message", "hint"),
    [
        ("perlmutter", {"gpus": 3}, "QOS shared allows at most 2", "--qos regular allows it; or"),
        ("lumi-g", {"gpus": 9}, "9 GPUs requested, but a node of LUMI-G has 8", "use --nodes for more"),
        ("cirrus", {"gpus": 1}, "--gpus 1: a node of Cirrus (CPU) has no GPUs", "leave --gpus out"),
        ("lumi-g", {"account": ""}, "jobs on LUMI-G require an account", "such as project_465000000"),
        ("lumi-g", {"account": "z19"}, "has no account of this form", "such as project_465000000"),
        ("lumi-g", {"account": "a\n#SBATCH --x"}, "contains characters", "letters, digits"),
        ("lumi-g", {"time": "3h"}, "--time: '3h' is not a time", "HH:MM:SS"),
        ("lumi-g", {"time": "7-0"}, "exceeds the limit of partition small-g", "--chain 3"),
        ("lumi-g", {"launcher": "mpi"}, "LUMI-G: the recipe has no 'mpi:'", "--launcher srun"),
        ("lumi-g", {"tasks": 2}, "--tasks cannot be used with GPUs", "--gpus N"),
        ("chameleon-a100", {"chain": 2}, "has no scheduler, which --chain needs", "leave it out"),
        ("cpu", {"tasks": 2}, "no scheduler to start 2 processes", "torchrun"),
        ("lumi-g", {"gpus": 0}, "no queue for jobs without GPUs", "site.slurm.queues.cpu"),
        ("lumi-g", {"binds": ("/a:b",)}, "the target 'b' is not an", "write --bind /a:/b"),
        ("frontier", {"nodes": 100, "time": "7:00:00"}, "batch (06:00:00)", "--chain 2"),
        ("leonardo", {"time": "48:00:00"}, "exceeds the limit", "--qos boost_qos_lprod"),
        ("jupiter", {"gpus": 1}, "allows only 4 GPUs per node", "--gpus 4"),
    ],
)
def test_invalid_requests(target: str, request_: dict[str, Any], message: str, hint: str) -> None:
    """The error names the option, the hint says what to write."""
    error = request_error(target, **request_)
    assert message in error.message and hint in error.hint
    assert "secret" not in str(error)


def test_job_without_command() -> None:
    """The image's own command starts in the folder of the submission, too: what it writes stays."""
    recipe = load_recipe("perlmutter", ROOT)
    text = render(plan_job(recipe, JobRequest(account="m558")))
    assert '-v "$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR"' in text and '-w "$SLURM_SUBMIT_DIR"' in text
    copied = (Files(source="builder", target="/app/builder"),)
    below = recipe.model_copy(update={"workdir": "/app/builder", "files": copied})
    assert '-w "$SLURM_SUBMIT_DIR/builder"' in render(plan_job(below, JobRequest(account="m558")))
    elsewhere = recipe.model_copy(update={"workdir": "/srv"})
    assert " -w " not in render(plan_job(elsewhere, JobRequest(account="m558"))), "the image's own"


def test_data_is_no_folder(tmp_path: Path) -> None:
    error = request_error("lumi-g", data=str(tmp_path))
    assert "is a folder, not a tar" in error.message and f"tar -cf {tmp_path.name}.tar -C" in error.hint


def test_fast_network() -> None:
    """The wrapper runs in the container; ranks meet at the node's name in the fast network."""
    site = Site(
        slurm=Slurm(account="none"),
        node=NodeHardware(gpus=4, cores=64),
        runtime=Runtime(kind="apptainer"),
        fabric=Fabric(master_address="{host}i", wrapper=("env", "A=$B"), srun=("--mpi=pmi2",)),
    )
    text = render(plan_job(made_recipe(site=site), JobRequest(command=("python", "t.py"), nodes=2)))
    assert 'MASTER_ADDR="${MASTER_ADDR}i"' in text
    assert 'env "A=$B" python t.py' in text
    assert re.search(r"^ +srun .*--mpi=pmi2 --kill-on-bad-exit=1 bash -c task", text, re.MULTILINE)
    one = render(plan_job(made_recipe(site=site), JobRequest(command=("python", "t.py"))))
    assert "MASTER_ADDR}i" not in one and "A=$B" not in one and "pmi2" not in one


@pytest.mark.parametrize(
    ("slurm", "gpus", "option"),
    [(None, 2, "--gpus=2"), (None, 4, "--gpus=all"), (Slurm(account="none"), 2, "--gpus=all")],
)
def test_gpus_of_docker(slurm: Slurm | None, gpus: int, option: str) -> None:
    """Slurm's variables choose among all GPUs: a count would give the container the node's first ones."""
    runtime = Runtime(kind="docker", gpu=("--gpus={count}",))
    site = Site(slurm=slurm, launcher="torchrun", runtime=runtime, node=NodeHardware(gpus=4, cores=4))
    recipe = made_recipe(site=site, gpu=Gpu(vendor="nvidia"))
    request = JobRequest(command=("t.py",), gpus=gpus, image="x/y:1")
    assert option in plan_job(recipe, request).container.options
    none = plan_job(recipe, JobRequest(command=("t.py",), gpus=0, image="x/y:1"))
    assert not any(word.startswith("--gpus") for word in none.container.options)


def test_checkpoints_of_a_job() -> None:
    """The folder of checkpoints can have the job's id, which all segments of a chain share."""
    site = Site(slurm=Slurm(account="none"), runtime=Runtime(kind="apptainer"), node=NodeHardware(cores=4))
    request = JobRequest(command=("t.py", "{x}", "$HOME"), checkpoint="out/$BUILDER_JOB_ID", chain=2)
    text = render(plan_job(made_recipe(site=site), request))
    assert 'export BUILDER_CHECKPOINT_DIR="$SLURM_SUBMIT_DIR/out/$BUILDER_JOB_ID"' in text
    assert "export BUILDER_JOB_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" in text
    assert "t.py '{x}' \"\\$HOME\"" in text
