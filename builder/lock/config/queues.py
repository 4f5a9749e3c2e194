"""Slurm at a site: the limits of its partitions and QOS, and the queue of each kind of job.

``partitions`` and ``qos`` are facts: Slurm refuses what they do not allow, and builder reports it
before. ``queues`` are choices: the options of each kind of job, unless the command line names
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .fields import Line, Model, Option, Size, Time, parsed, seconds

#: A regular expression.
_Pattern = Annotated[str, parsed(re.compile, "is not a regular expression: REASON")]
QueueName = Literal["gpu", "node", "nodes", "cpu", "interactive", "build"]


class Limits(Model):
    """What Slurm allows. Empty and None: unknown, or unlimited; builder then checks nothing."""

    max_time: Time = ""
    """Longest time limit of a job."""
    min_time: Time = ""
    """Shortest time limit of a job."""
    max_nodes: Annotated[int, Field(ge=1)] | None = None
    """Most nodes of a job."""
    min_nodes: Annotated[int, Field(ge=1)] = 1
    """Fewest nodes of a job."""
    time_by_nodes: dict[Annotated[int, Field(ge=1)], Time] = Field(default_factory=dict)
    """Longest time limits of jobs with at most this many nodes, such as ``{91: 2:00:00, 183:
    6:00:00}``.
    """
    node_minutes: Annotated[int, Field(ge=1)] | None = None
    """Most nodes times minutes of a job."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Limits:
        if self.max_nodes is not None and self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is more than max_nodes {self.max_nodes}")
        if self.min_time and self.max_time and seconds(self.min_time) > seconds(self.max_time):
            raise ValueError(f"min_time {self.min_time} is longer than max_time {self.max_time}")
        return self


class PartitionLimits(Limits):
    """A partition of the site."""

    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs of a node; None: those of ``site.node``."""
    gpu_counts: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The only numbers of GPUs per node that a job can request; empty: any."""
    qos: tuple[str, ...] = ()
    """The QOS that it accepts; empty: all."""


class Qos(Limits):
    """A quality of service: its limits hold in addition to the partition's."""

    max_gpus: Annotated[int, Field(ge=1)] | None = None
    """Most GPUs of a job, of all its nodes."""


class Queue(Model):
    """Slurm options for one kind of job."""

    partition: Line = ""
    """``--partition``; empty: Slurm's default."""
    qos: Line = ""
    """``--qos``; empty: Slurm's default."""
    constraint: Line = ""
    """``--constraint``; empty: none."""
    gpus: Option | None = None
    """Replaces ``slurm.gpus`` for this queue; None: use ``slurm.gpus``."""
    memory: Size = ""
    """``--mem``; takes precedence over the node's values."""
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    """``--cpus-per-task``; None: calculated from the node."""
    time: Time = ""
    """Default time limit in this queue; empty: ``slurm.time``."""
    max_time: Time = ""
    """Longest time limit that this queue allows; empty: that of its partition and QOS."""
    options: tuple[Option, ...] = ()
    """Additional options of sbatch and salloc."""
    srun: tuple[Option, ...] = ()
    """Additional options of srun."""


class Slurm(Model):
    """The Slurm configuration of a site."""

    account: Literal["required", "optional", "none"] = "required"
    """Whether jobs name an account."""
    account_example: Line = ""
    """An example of an account here, for error messages: ``project_465000000``."""
    account_form: _Pattern = ""
    """Regular expression of a whole account: ``project_\\d{9}``; empty: any."""
    gpus: Option = "--gpus-per-node={gpus}"
    """The option that requests GPUs."""
    time: Time = "01:00:00"
    """Default time limit of a job."""
    segment: Time = "24:00:00"
    """Time limit of one segment of a chain. Advice, not a limit."""
    max_time: Time = ""
    """Longest time limit of any job, where ``partitions`` and ``qos`` do not say it; empty:
    unknown.
    """
    partitions: dict[Line, PartitionLimits] = Field(default_factory=dict)
    """The partitions, also those that no queue takes; empty: unknown, then any name is accepted.
    The name ``""`` is Slurm's default partition, where jobs must not name one."""
    qos: dict[Line, Qos] = Field(default_factory=dict)
    """The qualities of service, also those that no queue takes; empty: unknown, then any name is
    accepted.
    """
    refused: dict[Line, Line] = Field(default_factory=dict)
    """Options of sbatch that the site does not accept, each with the reason: ``mem``,
    ``partition``.
    """
    queues: dict[QueueName, Queue] = Field(default_factory=dict)
    """``gpu``: some GPUs of a node; ``node``: one whole node; ``nodes``: several nodes (default:
    ``node``); ``cpu``: no GPU; ``interactive``: salloc; ``build``: image builds on a compute
    node."""
    srun: tuple[Option, ...] = ()
    """Options of every srun."""
    salloc_on_node: bool = True
    """True: the shell of salloc runs on the allocated node. False: it stays on the login node, so
    commands need srun."""

    @model_validator(mode="after")
    def _queues_exist(self) -> Slurm:
        for name, queue in self.queues.items():
            for key, unknown, known in self.unknown_names(queue):
                problem = f"{unknown!r} is not one of {', '.join(known)}"
                raise ValueError(f"queues.{name}.{key}: {problem}")
        return self

    def unknown_names(self, queue: Queue) -> Iterator[tuple[str, str, list[str]]]:
        """Yield each partition or QOS of a queue that the site lacks: key, name, known names."""
        for key, known in (("partition", [*self.partitions]), ("qos", [*self.qos])):
            named = getattr(queue, key)
            for name in named.split(",") if named and known else ():
                if name not in known:
                    yield key, name, known
