"""Options of Slurm in the place of the recipe's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from builder.config.queues import Partition, Queue, Slurm
from builder.config.recipe import Recipe
from builder.config.site import Node, Runtime, Site
from builder.errors import UsageError
from builder.site.plan import plan_job, salloc
from builder.site.render import render
from builder.site.request import JobRequest, SlurmRequest
from builder.site.slurmrequest import read_extra
from tests.support.image_kit import recipe

SLURM = Slurm(
    account="none",
    partitions={
        "standard": Partition(max_time="2-0", qos=("normal",)),
        "debug": Partition(max_time="00:30:00", qos=("short",)),
    },
    queues={"gpu": Queue(partition="standard", qos="normal", time="12:00:00")},
    refused={"mail": "mail is off here: look with squeue"},
)


def target(slurm: Slurm | None = SLURM) -> Recipe:
    runtime = Runtime(kind="apptainer")
    site = Site(title="S", slurm=slurm, node=Node(gpus=4, cores=64), runtime=runtime, launcher="torchrun")
    return recipe(site=site)


def directives(**asked: Any) -> list[str]:
    more = {name: asked.pop(name) for name in ("chain", "time") if name in asked}
    text = render(plan_job(target(), JobRequest(command=("x",), slurm=SlurmRequest(**asked), **more)))
    return re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE)


def test_options() -> None:
    found = directives(
        constraint="gpu&hbm80g",
        mem="60G",
        cpus=4,
        reservation="r",
        exclude="nid[1-3,7]",
        requeue=True,
        extra=("--comment=a b", "--gres=lscratch:5"),
    )
    assert {
        "--constraint=gpu&hbm80g",
        "--mem=60G",
        "--cpus-per-task=4",
        "--reservation=r",
        "--exclude=nid[1-3,7]",
        "--requeue",
        "--open-mode=append",
        "'--comment=a b'",
        "--gres=lscratch:5",
        "--partition=standard",
        "--qos=normal",
        "--time=12:00:00",
    } <= set(found)


@pytest.mark.parametrize("extra", ["--output=logs/%j.out", "-ologs/%j.out"])
def test_own_output(extra: str) -> None:
    """sbatch takes the last name that it reads, so builder writes none after the user's."""
    assert [option for option in directives(extra=(extra,)) if "out" in option] == [extra]
    assert "--output=%x-%A_%a.out" in directives(chain=2)
    assert "--output=%x-%A_%a.out" not in directives(chain=2, extra=(extra,))


def test_another_partition() -> None:
    """It has neither the queue's QOS, unless it accepts it, nor the queue's time."""
    found = directives(partition="debug")
    assert "--partition=debug" in found and "--time=00:30:00" in found
    assert not [option for option in found if option.startswith("--qos")]
    assert "--qos=short" in directives(partition="debug", qos="short")
    with pytest.raises(UsageError, match="exceeds the limit of partition debug") as raised:
        directives(partition="debug", time="01:00:00")
    assert "--partition standard --qos normal allows it" in raised.value.hint


def test_signal() -> None:
    """A chain gets a signal before its limit, unless it is told another one, or none."""
    assert "--signal=TERM@120" in directives(chain=2)
    assert "--signal=USR1@60" in directives(chain=2, signal="USR1@60")
    for options in (directives(chain=2, signal="none"), directives()):
        assert not [option for option in options if option.startswith("--signal")]


def test_interactive() -> None:
    request = JobRequest(slurm=SlurmRequest(partition="debug", extra=("--x11",), requeue=True))
    allocate = salloc(target(), request).allocate
    assert {"--partition=debug", "--x11"} <= set(allocate) and "--requeue" not in allocate


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        ({"qos": "a b"}, "--qos 'a b' is not one word", "--qos NAME"),
        ({"constraint": "a#b"}, "--constraint 'a#b' is not one word", "--constraint NAME"),
        ({"mem": "lots"}, "--mem 'lots' is not a size", "--mem 64G"),
        ({"cpus": 65}, "--cpus 65: a node of S has 64 cores", "at most 64"),
        ({"cpus": 0}, "--cpus 0: a node of S has 64 cores", "at most 64"),
        ({"mail": "a@b"}, "--mail: S does not accept it", "look with squeue"),
        ({"signal": "B:TERM@9"}, "--signal B:TERM@9: the job's script", "leave B: out: TERM@9"),
        ({"signal": "term"}, "--signal 'term' is not a signal", "--signal TERM@120"),
        ({"extra": ("--time=3",)}, "--slurm --time=3: builder writes this option itself", "pass --time"),
        ({"extra": ("-N3",)}, "--slurm -N3: builder writes this option itself", "pass --nodes"),
        ({"extra": ("3",)}, "--slurm '3' is not an option", "--name=value"),
        ({"extra": ("--a\nid",)}, "--slurm '--a\\nid' is not an option", "--name=value"),
        ({"constraint": "a\x1b[2J"}, "--constraint 'a\\x1b[2J' is not one word", "as Slurm reads it"),
        ({"partition": "debugg"}, "--partition debugg: S has no such partition", "debug"),
    ],
)
def test_refused(asked: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        plan_job(target(), JobRequest(command=("x",), slurm=SlurmRequest(**asked)))
    assert message in raised.value.message and hint in raised.value.hint


def test_no_scheduler() -> None:
    with pytest.raises(UsageError, match="S has no scheduler, which --slurm needs"):
        plan_job(target(None), JobRequest(command=("x",), slurm=SlurmRequest(extra=("--x",))))


def test_extra() -> None:
    assert read_extra(("--a=1 --b='x y'", "--c")) == ("--a=1", "--b=x y", "--c")
    with pytest.raises(UsageError, match="--slurm: No closing quotation"):
        read_extra(("--a='x",))


def test_account_form() -> None:
    slurm = Slurm(account_form=r"project_\d{9}", account_example="project_465000000")
    plan_job(target(slurm), JobRequest(command=("x",), account="project_465000001"))
    with pytest.raises(UsageError, match="--account z19: S has no account of this form") as raised:
        plan_job(target(slurm), JobRequest(command=("x",), account="z19"))
    assert "project_465000000" in raised.value.hint


@pytest.mark.parametrize(("on_node", "tasks"), [(True, 4), (False, 1)])
def test_interactive_gpus(on_node: bool, tasks: int) -> None:
    """On the node srun starts one process per GPU; a shell that srun itself starts is one."""
    allocate = salloc(target(Slurm(account="none", salloc_on_node=on_node)), JobRequest(gpus=4)).allocate
    assert f"--ntasks-per-node={tasks}" in allocate
    assert f"--cpus-per-task={64 // tasks}" in allocate
