"""Options of Slurm in the place of the recipe's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job_plan import plan_job, salloc
from builder.deliver.site.render import render
from builder.deliver.site.request import JobRequest
from builder.deliver.site.slurm import inherited, read_slurm
from builder.lock.config.queues import PartitionLimits, Queue, Slurm
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import NodeHardware, Runtime, Site
from tests.support.image_kit import recipe

SLURM = Slurm(
    account="none",
    partitions={
        "standard": PartitionLimits(max_time="2-0", qos=("normal",)),
        "debug": PartitionLimits(max_time="00:30:00", qos=("short",)),
    },
    queues={"gpu": Queue(partition="standard", qos="normal", time="12:00:00")},
    refused={"mail-user": "mail is off here: look with squeue"},
)


def target(slurm: Slurm | None = SLURM) -> Recipe:
    runtime = Runtime(kind="apptainer")
    site = Site(
        title="S", slurm=slurm, node=NodeHardware(gpus=4, cores=64), runtime=runtime, launcher="torchrun"
    )
    return recipe(site=site)


def directives(*raw: str, partition: str = "", qos: str = "", **more: Any) -> list[str]:
    asked = read_slurm(raw, partition=partition, qos=qos)
    text = render(plan_job(target(), JobRequest(command=("x",), slurm=asked, **more)))
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


def test_options() -> None:
    """Raw options take the place of the recipe's of the same name; the others stay."""
    found = directives("--mem=60G", "--cpus-per-task=4", "--requeue", "--comment=a b", "--job-name=mine")
    assert {
        "--mem=60G",
        "--cpus-per-task=4",
        "--requeue",
        "'--comment=a b'",
        "--job-name=mine",
        "--partition=standard",
        "--qos=normal",
        "--time=12:00:00",
    } <= set(found)
    assert sum(option.startswith(("--cpus-per-task", "--job-name")) for option in found) == 2
    assert not [option for option in directives("--mem-per-gpu=9G") if option.startswith("--mem=")]
    assert "--open-mode=append" in directives()
    modes = [option for option in directives("--open-mode=truncate") if option.startswith("--open-mode")]
    assert modes == ["--open-mode=truncate"]


def test_inherited() -> None:
    """A script unsets what Slurm sets only with an option that it does not have."""
    words = inherited(["--hint=nomultithread", "--mem=1G"]).split()
    assert {"SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", '"${!SLURM_CPU_BIND@}"', "SLURM_EXPORT_ENV"} <= set(
        words
    )
    assert not {"SLURM_MEM_PER_NODE", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_MPI_TYPE"} & set(words)


def test_another_partition() -> None:
    """It has neither the queue's QOS, unless it accepts it, nor the queue's time."""
    found = directives(partition="debug")
    assert "--partition=debug" in found and "--time=00:30:00" in found
    assert not [option for option in found if option.startswith("--qos")]
    assert "--qos=short" in directives(partition="debug", qos="short")
    with pytest.raises(UsageError, match="exceeds the limit of partition debug") as raised:
        directives(partition="debug", time="01:00:00")
    assert "--partition standard --qos normal allows it" in raised.value.hint


def test_queue_in_raw_options() -> None:
    """The limits of a partition hold however it is named."""
    assert "--time=00:30:00" in directives("--partition=debug")
    with pytest.raises(UsageError, match="exceeds the limit of partition debug"):
        directives("--partition=debug", time="01:00:00")


def test_interactive() -> None:
    asked = read_slurm(("--x11",), partition="debug")
    assert {"--partition=debug", "--x11"} <= set(salloc(target(), JobRequest(slurm=asked))[0].split())


@pytest.mark.parametrize(
    ("raw", "message", "hint"),
    [
        ("--qos=a b", "--qos 'a b' is not one word", "--qos NAME"),
        ("--mail-user=a@b", "--mail-user: S does not accept it", "look with squeue"),
        ("--time=3", "--slurm=--time=3: builder writes this option itself", "pass --time"),
        ("--nodes", "--slurm=--nodes: builder writes this option itself", "pass --nodes"),
        ("-N3", "--slurm=-N3: not an option", "--name=value"),
        ("3", "--slurm=3: not an option", "--name=value"),
        ("--a\nid", "not an option", "--name=value"),
        ("--partition=debugg", "--partition debugg: S has no such partition", "debug"),
    ],
)
def test_refused(raw: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        directives(raw)
    assert message in raised.value.message and hint in raised.value.hint


def test_no_scheduler() -> None:
    with pytest.raises(UsageError, match="S has no scheduler, which --x needs"):
        plan_job(target(None), JobRequest(command=("x",), slurm=read_slurm(("--x",))))


@pytest.mark.parametrize(("on_node", "tasks"), [(True, 4), (False, 1)])
def test_interactive_gpus(on_node: bool, tasks: int) -> None:
    """On the node srun starts one process per GPU; a shell that srun itself starts is one."""
    line, _ = salloc(target(Slurm(account="none", salloc_on_node=on_node)), JobRequest(gpus=4))
    assert {f"--ntasks-per-node={tasks}", f"--cpus-per-task={64 // tasks}"} <= set(line.split())
