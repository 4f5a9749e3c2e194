"""The jobs of a site that are tried: for each partition and QOS one at each limit and one beyond it, and
names that the site does not have. One table for builder, which checks before it submits, and for Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.config.fields import seconds
from builder.config.queues import Limits, Partition, Qos
from builder.site.request import JobRequest, SlurmRequest
from tests.support.slurmsites import FakeSite

#: A name that no site has.
UNKNOWN = "nosuch"
#: The time limit of jobs whose time is not tried, in minutes.
_SHORT = 10
#: Limits as the documents of sites have them, so that a wrong value in a site file is seen: site, partition,
#: QOS, most nodes (0: not limited), longest time.
DOCUMENTED = (
    # https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/partitions/ (2025-02), sinfo of 2026-04
    ("lumi-g", "small-g", "", 4, "3-00:00:00"),
    ("lumi-g", "standard-g", "", 1024, "2-00:00:00"),
    # https://docs.nersc.gov/jobs/policy/ (as copied by users in 2026-09)
    ("perlmutter", "", "debug", 8, "0-00:30:00"),
    ("perlmutter", "", "interactive", 4, "0-04:00:00"),
    # https://docs.cirrus.ac.uk/user-guide/batch/ (2026-08-04)
    ("cirrus", "standard", "short", 2, "0-00:20:00"),
    ("cirrus", "standard", "standard", 128, "2-00:00:00"),
    # https://docs.olcf.ornl.gov/systems/frontier_user_guide.html (2026-07-07)
    ("frontier", "extended", "normal", 64, "1-00:00:00"),
    # https://docs.hpc.cineca.it/hpc/leonardo.html (as copied in 2026-05 and 2026-06)
    ("leonardo", "boost_usr_prod", "normal", 64, "1-00:00:00"),
    ("leonardo", "boost_usr_prod", "boost_qos_dbg", 8, "0-00:30:00"),
    # https://apps.fz-juelich.de/jsc/hps/juwels/ (undated copy)
    ("juwels-booster", "develbooster", "", 4, "0-02:00:00"),
    # https://www.bsc.es/supportkc/docs/MareNostrum5/ (as translated by TRUBA in 2025)
    ("marenostrum5", "acc", "acc_debug", 8, "0-02:00:00"),
    # https://docs.cscs.ch/clusters/daint/ (2026-08)
    ("alps-daint", "debug", "", 2, "0-00:30:00"),
    # https://docs.alliancecan.ca/wiki/Fir (2026-07-24)
    ("alliance-fir", "", "", 0, "7-00:00:00"),
)
_OPTIONS = ("partition", "qos", "constraint", "mem")


@dataclass(frozen=True)
class Trial:
    """A job that the site allows, and a change of it."""

    what: str
    base: JobRequest
    """A job that the site allows."""
    change: Mapping[str, int | str] = field(default_factory=dict)
    """Fields of the request, and of its options of Slurm, that are changed; ``gres`` is ``--gres``."""
    builder: bool = False
    """Whether builder refuses the changed job."""
    slurm: bool = False
    """Whether Slurm refuses it."""

    @property
    def request(self) -> JobRequest:
        """The changed request."""
        own: dict[str, Any] = {k: v for k, v in self.change.items() if k not in (*_OPTIONS, "gres")}
        options: dict[str, Any] = {k: v for k, v in self.change.items() if k in _OPTIONS}
        if "gres" in self.change:
            options["extra"] = (f"--gres={self.change['gres']}",)
        return replace(self.base, **own, slurm=replace(self.base.slurm, **options))

    @property
    def options(self) -> list[str]:
        """Options of sbatch that change the script of the base in the same way."""
        names = {"gpus": "gpus-per-node"}
        return [f"--{names.get(key, key)}={value}" for key, value in self.change.items()]


@dataclass(frozen=True)
class Place:
    """A partition and a QOS of a site."""

    site: FakeSite
    partition: str
    """Empty: the default one."""
    partition_limits: Partition
    qos: str
    qos_limits: Qos

    @property
    def limits(self) -> tuple[Limits, Limits]:
        return self.partition_limits, self.qos_limits

    @property
    def gpus(self) -> int:
        """GPUs per node of a job here: all, if a job may have them, but not more than ``site.node`` has."""
        if self.partition_limits.gpu_counts:
            return max(self.partition_limits.gpu_counts)
        if self.qos_limits.max_gpus:
            return 1
        own = self.partition_limits.gpus
        return self.site.main.gpus if own is None else min(own, self.site.main.gpus)

    def base(self) -> JobRequest:
        """A job that this place allows."""
        fewest = max(limits.min_nodes for limits in self.limits)
        shortest = max(minutes(limits.min_time) for limits in self.limits)
        return JobRequest(
            command=("python", "train.py"),
            image="/image.sif",
            account=self.site.account if self.site.slurm.account != "none" else "",
            nodes=fewest,
            gpus=self.gpus,
            time=written(max(shortest, _SHORT)),
            slurm=SlurmRequest(partition=self.partition, qos=self.qos),
        )

    def trials(self) -> Iterator[Trial]:
        """Yields jobs at each limit and beyond."""
        name = f"partition {self.partition or 'by default'}, QOS {self.qos or 'by default'}"
        for trial in (*self._node_trials(), *self._time_trials(), *self._gpu_trials()):
            yield replace(trial, what=f"{name}: {trial.what}")

    def _node_trials(self) -> Iterator[Trial]:
        base = self.base()
        if base.nodes > 1:
            yield Trial("too few nodes", base, {"nodes": base.nodes - 1}, builder=True, slurm=True)
        most = min((x.max_nodes for x in self.limits if x.max_nodes), default=0)
        if most:
            yield Trial("most nodes", base, {"nodes": most})
            yield Trial("too many nodes", base, {"nodes": most + 1}, builder=True, slurm=True)

    def _time_trials(self) -> Iterator[Trial]:
        base = self.base()
        for limits in self.limits:
            if limits.min_time:
                short = written(minutes(limits.min_time) - 1)
                yield Trial("too short, by a plugin of the site", base, {"time": short}, builder=True)
            for nodes, time in limits.time_by_nodes.items():
                long = {"nodes": nodes, "time": written(minutes(time) + 1)}
                yield Trial("too long for its nodes, by a plugin of the site", base, long, builder=True)
            if limits.node_minutes:
                long = {"nodes": 2, "time": written(limits.node_minutes // 2 + 1)}
                yield Trial("too many minutes of nodes", base, long, builder=True, slurm=True)
        longest = min((minutes(x.max_time) for x in self.limits if x.max_time), default=0)
        if longest:
            most = [x.max_nodes for x in self.limits if x.time_by_nodes and x.max_nodes]
            base = replace(base, nodes=most[0]) if most and not self.qos_limits.max_nodes else base
            yield Trial("longest", base, {"time": written(longest)})
            yield Trial("too long", base, {"time": written(longest + 1)}, builder=True, slurm=True)

    def _gpu_trials(self) -> Iterator[Trial]:
        base, most = self.base(), self.qos_limits.max_gpus
        if most:
            yield Trial("most GPUs", base, {"gpus": most})
            yield Trial("too many GPUs", base, {"gpus": most + 1}, builder=True, slurm=True)
        allowed = self.partition_limits.gpu_counts
        others = set(range(1, self.site.main.gpus)) - set(allowed)
        if allowed and others:
            wrong = {"gpus": max(others)}
            yield Trial("another number of GPUs, by a plugin of the site", base, wrong, builder=True)


def places(site: FakeSite) -> list[Place]:
    """Returns the partitions and QOS that builder's jobs can take: not those for image builds only."""
    queues = site.slurm.queues
    # Without a table of partitions, those that the site's jobs take.
    taken = {queue.partition for kind, queue in queues.items() if kind in ("gpu", "node", "nodes")} or {""}
    found = []
    for part in site.partitions:
        name = "" if part.is_default else part.name
        of_builds = site.main.gpus and part.limits.gpus == 0 and "cpu" not in queues
        if of_builds or (not site.slurm.partitions and name not in taken):
            continue
        for qos in part.limits.qos or tuple(site.qos) or ("",):
            found.append(Place(site, name, part.limits, qos, site.qos.get(qos, Qos())))
    return found


def unknown_names(site: FakeSite, base: JobRequest) -> list[Trial]:
    """Returns jobs with names that the site does not have; builder knows some of them."""
    slurm = site.slurm
    knows_partitions = bool(slurm.partitions) or "partition" in slurm.refused
    trials = [
        Trial("unknown partition", base, {"partition": UNKNOWN}, builder=knows_partitions, slurm=True),
        Trial("unknown QOS", base, {"qos": UNKNOWN}, builder=bool(slurm.qos), slurm=True),
        Trial("unknown constraint", base, {"constraint": UNKNOWN}, slurm=True),
    ]
    if slurm.account != "none":
        wrong = {"account": UNKNOWN}
        trials.append(Trial("wrong account", base, wrong, builder=bool(slurm.account_form), slurm=True))
    if slurm.account == "required":
        trials.append(Trial("no account", base, {"account": ""}, builder=True))
    if site.main.gpus:
        trials.append(Trial("unknown GPU type", base, {"gres": f"gpu:{UNKNOWN}:1"}, slurm=True))
        trials.append(Trial("GPUs of no node", base, {"gpus": 64}, builder=True, slurm=True))
    if "mem" in slurm.refused:
        trials.append(Trial("memory, by a plugin of the site", base, {"mem": "1G"}, builder=True))
    return trials


def documented(site: FakeSite) -> Iterator[Trial]:
    """Yields jobs at the limits of :data:`DOCUMENTED`, and beyond them."""
    for name, partition, qos, most, longest in DOCUMENTED:
        if name != site.name:
            continue
        place = next(p for p in places(site) if (p.partition, p.qos) == (partition, qos))
        base = replace(place.base(), nodes=1)
        yield Trial("most nodes and time, as documented", base, {"nodes": most or 1, "time": longest})
        long = {"time": written(minutes(longest) + 1)}
        yield Trial("too long, as documented", base, long, builder=True, slurm=True)
        if most:
            yield Trial("too many nodes, as documented", base, {"nodes": most + 1}, builder=True, slurm=True)


def trials(site: FakeSite) -> list[Trial]:
    """Returns all trials of a site."""
    all_places = places(site)
    return [
        *(trial for place in all_places for trial in place.trials()),
        *documented(site),
        *unknown_names(site, all_places[0].base()),
    ]


def minutes(time: str) -> int:
    """Returns a time limit in minutes; 0 for an empty one."""
    return seconds(time) // 60 if time else 0


def written(number: int) -> str:
    """Returns minutes as Slurm writes them."""
    days, rest = divmod(number, 24 * 60)
    return f"{days}-{rest // 60:02}:{rest % 60:02}:00"


def gpu_options(trial: Trial, option: str) -> Sequence[str]:
    """Returns the options of a trial, with the site's own way to request GPUs."""
    gpus = trial.change.get("gpus")
    own = option.replace("{gpus}", str(gpus)).replace("{total}", str(gpus))
    return [own if given.startswith("--gpus-per-node=") else given for given in trial.options]
