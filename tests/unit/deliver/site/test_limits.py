"""Limits of partitions and QOS, and what allows a job that they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from builder.core.errors import UsageError
from builder.deliver.site.job import Resources
from builder.deliver.site.limits import alternatives, check_limits, longest_time
from builder.lock.config.queues import PartitionLimits, Qos, Queue, Slurm
from builder.lock.config.recipe import Recipe
from builder.lock.config.site import NodeHardware, Runtime, Site
from tests.support.image_kit import recipe

SLURM = Slurm(
    partitions={
        "small": PartitionLimits(max_time="3-00:00:00", max_nodes=4),
        "standard": PartitionLimits(max_time="2-00:00:00", max_nodes=1024),
        "debug": PartitionLimits(max_time="00:30:00", max_nodes=4, node_minutes=60, gpus=0),
        "batch": PartitionLimits(
            max_time="12:00:00", time_by_nodes={183: "06:00:00", 91: "02:00:00"}, gpu_counts=(1, 4)
        ),
        "closed": PartitionLimits(max_time="7-00:00:00", qos=("long",)),
    },
    qos={
        "normal": Qos(max_nodes=8),
        "long": Qos(min_nodes=2, min_time="01:00:00", max_gpus=16),
    },
)


def site(slurm: Slurm = SLURM) -> Recipe:
    node = NodeHardware(gpus=4, cores=64)
    return recipe(site=Site(title="S", slurm=slurm, node=node, runtime=Runtime(kind="apptainer")))


@pytest.mark.parametrize(
    ("queue", "nodes", "longest"),
    [
        ({"partition": "small"}, 1, "3-00:00:00"),
        ({"partition": "small", "max_time": "01:00:00"}, 1, "01:00:00"),
        ({"partition": "batch"}, 91, "02:00:00"),
        ({"partition": "batch"}, 92, "06:00:00"),
        ({"partition": "batch"}, 184, "12:00:00"),
        ({"partition": "debug"}, 1, "00:30:00"),
        ({"partition": "debug"}, 4, "00:15:00"),
        ({"partition": "small,standard"}, 1, ""),
        ({}, 1, ""),
    ],
)
def test_longest_time(queue: dict[str, Any], nodes: int, longest: str) -> None:
    assert longest_time(SLURM, Queue(**queue), nodes) == longest


def test_no_default_partition() -> None:
    """A queue without a partition is for sites with a default one, whose name is empty."""
    with pytest.raises(UsageError, match="S: site.slurm.queues has no partition") as caught:
        check_limits(site(), Resources(1, 4, 4), Queue(), "00:10:00")
    assert "small, standard" in caught.value.hint
    slurm = Slurm(partitions={"": PartitionLimits(max_time="01:00:00"), "debug": PartitionLimits()})
    check_limits(site(slurm), Resources(1, 4, 4), Queue(), "00:10:00")


def test_longest_time_of_all_jobs() -> None:
    """``slurm.max_time`` holds where nothing else is known."""
    slurm = Slurm(
        max_time="24:00:00", partitions={"a": PartitionLimits(max_time="2-0"), "b": PartitionLimits()}
    )
    times = {name: longest_time(slurm, Queue(partition=name), 1) for name in ("a", "b", "")}
    assert times == {"a": "2-0", "b": "24:00:00", "": "24:00:00"}


@pytest.mark.parametrize(
    ("queue", "size", "time", "message", "hint"),
    [
        ({"partition": "standard", "qos": "normal"}, (4, 4), "60:00:00",
         "exceeds the limit of partition standard with QOS normal (2-00:00:00)", "--partition small --qos"),
        ({"partition": "standard"}, (8, 4), "3-0", "partition standard", "--time 2-00:00:00 --chain 2"),
        ({"partition": "small"}, (5, 4), "1:0:0", "partition small allows at most 4", "--partition"),
        ({"partition": "standard", "qos": "normal"}, (9, 4), "30:0", "QOS normal", "no partition of S"),
        ({"partition": "closed", "qos": "long"}, (1, 4), "2:0:0", "QOS long requires", "--partition"),
        ({"partition": "batch"}, (1, 2), "1:0:0", "batch allows only 1 or 4", "--partition"),
        ({"partition": "smal"}, (1, 1), "1:0:0", "--partition smal: S has no such partition", "small"),
        ({"qos": "x"}, (1, 1), "1:0:0", "--qos x: S has no such qos", "known: normal, long"),
    ],
)  # fmt: skip
def test_refused(queue: dict[str, str], size: tuple[int, int], time: str, message: str, hint: str) -> None:
    resources = Resources(nodes=size[0], gpus=size[1], tasks=size[1])
    with pytest.raises(UsageError) as raised:
        check_limits(site(), resources, Queue(**queue), time)
    assert message in raised.value.message and hint in raised.value.hint


def test_allowed() -> None:
    """At the limits a job is allowed; what a site does not describe is not checked."""
    for queue, nodes, gpus, time in (
        ({"partition": "small"}, 4, 4, "3-0"),
        ({"partition": "batch", "qos": "normal"}, 8, 1, "2:0:0"),
        ({"partition": "closed", "qos": "long"}, 4, 4, "7-0"),
    ):
        check_limits(site(), Resources(nodes, gpus, gpus), Queue(**queue), time)
    check_limits(site(Slurm()), Resources(10**6, 4, 4), Queue(partition="any", qos="any"), "365-0")


def test_alternatives() -> None:
    """Neither partitions without GPUs nor QOS that they refuse are named."""
    found = [(place.partition, place.qos) for place in alternatives(site(), Resources(1, 4, 4), "20:00")]
    assert found == [("small", "normal"), ("standard", "normal"), ("batch", "normal")]
