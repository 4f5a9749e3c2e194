"""A real Slurm for each site of builder: partitions, QOS, node features, GPU types and accounts as in its
site file, in slurm.conf and in an accounting database. So Slurm itself refuses what the site would refuse.

One munged, one MariaDB and one slurmdbd serve all sites; the Slurm of a site runs while its tests run. It has
two nodes with a slurmd, where jobs run, and as many nodes without one as the limits need: jobs there wait.

What a site refuses by a plugin of its own is not known to this Slurm: the shortest time of a job, times by
the number of nodes, numbers of GPUs that a partition allows, options that a site does not accept.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.config.queues import Limits, Partition, Qos, Slurm
from builder.config.site import Site
from tests.support.parts import READY_S, clean_environment, need, need_root, part_folder
from tests.support.ports import free_ports
from tests.support.slurm import (
    NODES,
    Configuration,
    daemon,
    munge_socket,
    running_cluster,
    running_munge,
    short_host_name,
)
from tests.support.slurm import Slurm as RunningSlurm

#: The user of the tests: root may use every QOS and partition.
USER, GROUP = "nobody", 65534
#: The partition that Slurm takes for jobs without ``--partition``, where the site file does not name it.
DEFAULT_PARTITION = "main"
#: The name of all clusters: adding one to the accounting database takes a second.
CLUSTER = "site"
#: The account of sites whose file has no example of one.
ACCOUNT = "tests"
#: Cores and memory of nodes that the site file does not describe, such as CPU nodes of a GPU system.
_CORES, _MEMORY_MB = 256, 2 << 20
#: Nodes of a partition without a limit.
_NODES = 8
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}
#: ``h100`` in ``--gpus-per-node=h100:{gpus}`` and ``--gres=gpu:h100:{gpus}``.
_GPU_TYPE = re.compile(r"(?:=|gpu:)(?!gpu:)([a-z][\w.]*):\{")
#: ``tmpfs`` in ``--gres=tmpfs:100G``.
_GRES = re.compile(r"--gres=(?!gpu\b)(\w+)")
#: Options of MariaDB: small, and without waiting for the disk, since its content is thrown away.
_SMALL = (
    "--skip-log-bin",
    "--skip-grant-tables",
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-lock-wait-timeout=900",
)
_CPU_KINDS = ("cpu", "build")


@dataclass(frozen=True)
class Hardware:
    """What one kind of node has."""

    gpus: int
    gpu_type: str
    """Slurm's name of the GPUs; empty: they have none."""


@dataclass(frozen=True)
class FakePartition:
    """A partition of slurm.conf."""

    name: str
    limits: Partition
    hardware: tuple[Hardware, ...]
    """The kinds of nodes that it has."""
    is_default: bool


@dataclass(frozen=True)
class FakeSite:
    """What slurm.conf and the accounting database say of one site."""

    name: str
    site: Site
    main: Hardware
    """The nodes that the site file describes; the two real nodes are such."""
    partitions: tuple[FakePartition, ...]
    qos: dict[str, Qos]
    """The QOS with their limits, also those that only a queue names."""

    @property
    def slurm(self) -> Slurm:
        assert self.site.slurm is not None
        return self.site.slurm

    @property
    def account(self) -> str:
        """The account of the tests' user."""
        return self.slurm.account_example or ACCOUNT


def fake_site(name: str, site: Site) -> FakeSite:
    """Derives a fake site from a site that has Slurm."""
    slurm = site.slurm
    assert slurm is not None
    found = _GPU_TYPE.search(slurm.gpus)
    main = Hardware(site.node.gpus, found[1] if found and site.node.gpus else "")
    described = slurm.partitions or _partitions_of_queues(slurm)
    partitions = tuple(
        FakePartition(
            partition or DEFAULT_PARTITION,
            limits,
            _hardware(site, partition, limits, main),
            is_default=partition == "",
        )
        for partition, limits in described.items()
    )
    named = {q.qos for q in slurm.queues.values()} | {q for p in slurm.partitions.values() for q in p.qos}
    qos = {**{name: Qos() for name in sorted(named - {""})}, **slurm.qos}
    return FakeSite(name, site, main, partitions, qos)


def _partitions_of_queues(slurm: Slurm) -> dict[str, Partition]:
    """The partitions of a site whose file does not list them: the default one, and those of its queues."""
    names = {"", *(queue.partition for queue in slurm.queues.values())}
    return {name: Partition(max_time=slurm.max_time) for name in sorted(names)}


def _hardware(site: Site, partition: str, limits: Partition, main: Hardware) -> tuple[Hardware, ...]:
    assert site.slurm is not None
    if limits.gpus == 0:
        return (Hardware(0, ""),)
    if limits.gpus is not None or limits.gpu_type:
        gpus = main.gpus if limits.gpus is None else limits.gpus
        return (Hardware(gpus, limits.gpu_type or main.gpu_type),)
    if partition == "" and main.gpus and _features(site.slurm, _CPU_KINDS) - _features(site.slurm):
        return (main, Hardware(0, ""))  # a feature chooses nodes without GPUs
    return (main,)


def _features(slurm: Slurm, kinds: Sequence[str] = ()) -> set[str]:
    """The features that queues of these kinds request; without ``kinds``, those of jobs with GPUs."""
    queues = [
        queue for kind, queue in slurm.queues.items() if (kind in kinds if kinds else kind not in _CPU_KINDS)
    ]
    return {word for queue in queues for word in re.findall(r"\w+", queue.constraint)}


# configuration ----------------------------------------------------------------------------------------------


def configuration(fake: FakeSite, accounting: Sequence[str]) -> Configuration:
    """Returns the configuration of a site's Slurm; ``accounting`` are the lines that name slurmdbd."""
    groups = dict.fromkeys([fake.main, *(kind for part in fake.partitions for kind in part.hardware)])
    names = {kind: f"absent{number}" for number, kind in enumerate(groups)}
    nodes = [
        f"NodeName={names[kind]}-[1-{_count(fake, kind)}] NodeAddr=127.0.0.1 State=DOWN {_node(fake, kind)}"
        for kind in groups
    ]
    extra = _gres_names(fake.slurm)
    gres = [f"NodeName=node[1-2] Name={name} Count=1T Flags=CountOnly" for name in extra]
    if fake.main.gpus:
        kind = f"Type={fake.main.gpu_type}" if fake.main.gpu_type else ""
        gres.append(f"NodeName=node[1-2] Name=gpu {kind} File={{folder}}/gpu[0-{fake.main.gpus - 1}]")
    partitions = [_partition(fake, part, names) for part in fake.partitions]
    return Configuration(
        cluster=CLUSTER,
        nodes=_node(fake, fake.main),
        lines=(
            f"GresTypes={','.join(['gpu', *extra])}",
            "EnforcePartLimits=ALL",
            "SlurmdTimeout=0",  # nobody asks the nodes without a slurmd
            *accounting,
            *nodes,
            *partitions,
        ),
        gres="\n".join([*gres, ""]),
        own_folders=("/mnt", "/tmp"),  # noqa: S108  jobs write there
    )


def _gres_names(slurm: Slurm) -> list[str]:
    options = [option for queue in slurm.queues.values() for option in queue.options]
    return sorted({name for option in options for name in _GRES.findall(option)})


def _node(fake: FakeSite, kind: Hardware) -> str:
    """The hardware of a node, as slurm.conf writes it."""
    node, is_main = fake.site.node, kind == fake.main
    memory = _megabytes(node.memory) or node.gpus * _megabytes(node.memory_per_gpu)
    features = _features(fake.slurm) if kind.gpus else _features(fake.slurm, _CPU_KINDS)
    if not fake.main.gpus:
        features = _features(fake.slurm) | _features(fake.slurm, _CPU_KINDS)
    gres = [f"{name}:1T" for name in _gres_names(fake.slurm)]
    if kind.gpus:
        gres.append(
            ":".join(["gpu", kind.gpu_type, str(kind.gpus)] if kind.gpu_type else ["gpu", str(kind.gpus)])
        )
    words = {
        "Sockets": 1,
        "CoresPerSocket": node.cores if is_main else _CORES,
        "ThreadsPerCore": 1,
        "RealMemory": (memory if is_main else 0) or _MEMORY_MB,
        "Gres": ",".join(gres),
        "Feature": ",".join(sorted(features)),
    }
    return " ".join(f"{name}={value}" for name, value in words.items() if value)


def _megabytes(size: str) -> int:
    """The value of a size as Slurm writes it; 0 for an empty one."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", size)
    return int(int(found[1]) * _UNITS[found[2] or "M"]) if found else 0


def _count(fake: FakeSite, kind: Hardware) -> int:
    """How many nodes of a kind the limits need: one more than the largest job has."""
    limits: list[Limits] = [part.limits for part in fake.partitions if kind in part.hardware]
    limits += fake.qos.values()
    return max(max(one.max_nodes or 0, one.min_nodes) for one in limits) + _NODES


def _partition(fake: FakeSite, part: FakePartition, names: dict[Hardware, str]) -> str:
    nodes = [f"{names[kind]}-[1-{_count(fake, kind)}]" for kind in part.hardware]
    if fake.main in part.hardware:
        nodes.insert(0, f"node[1-{len(NODES)}]")
    words = {
        "Nodes": ",".join(nodes),
        "MaxTime": part.limits.max_time,
        "MaxNodes": part.limits.max_nodes,
        "MinNodes": part.limits.min_nodes,
        "AllowQos": ",".join(part.limits.qos),
        "QOS": _partition_qos(part) if part.limits.node_minutes else "",
        "Default": "YES" if part.is_default else "",
        "State": "UP",
    }
    return f"PartitionName={part.name} " + " ".join(f"{k}={v}" for k, v in words.items() if v)


def _partition_qos(part: FakePartition) -> str:
    """The QOS by which Slurm limits the jobs of a partition in more ways than partitions know."""
    return f"partition_{part.name}"


# accounting -------------------------------------------------------------------------------------------------


@dataclass
class Accounting:
    """The accounting database of all sites. They share QOS, so each site sets its own limits."""

    folder: Path
    port: int
    env: dict[str, str]
    limited: set[str] = field(default_factory=set)
    """QOS with limits of the last site."""

    def lines(self) -> list[str]:
        """Returns the lines of slurm.conf that name the database."""
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.port}",
            f"AccountingStoragePass={munge_socket(self.folder)}",
            "AccountingStorageEnforce=associations,limits,qos",
            "AccountingStorageTRES=gres/gpu",
        ]

    def run(self, *commands: str) -> str:
        """Runs commands of sacctmgr, one after another in one process."""
        done = subprocess.run(
            ["sacctmgr", "--immediate", "--noheader", "--parsable2"],
            input="\n".join([*commands, ""]),
            env=self.env,
            capture_output=True,
            text=True,
        )
        problems = [line for line in done.stderr.splitlines() if "error" in line or "Problem" in line]
        if done.returncode or problems:
            output = f"{done.stdout[-1000:]}{done.stderr[:2000]}"
            pytest.fail(f"sacctmgr {commands} ended with {done.returncode}:\n{output}", pytrace=False)
        return done.stdout

    def add(self, sites: Sequence[FakeSite]) -> None:
        """Adds clusters, accounts, QOS and the tests' user, for all sites at once: each command is slow."""
        qos = sorted({name for fake in sites for name in _qos_of(fake)} - {"normal"})
        accounts = sorted({fake.account for fake in sites})
        tree = [f"Cluster - '{CLUSTER}'", "Parent - 'root'", *(f"Account - '{a}'" for a in accounts)]
        for account in accounts:
            tree += [f"Parent - '{account}'", f"User - '{USER}':QOS='{','.join(['normal', *qos])}'"]
        (self.folder / "tree").write_text("\n".join([*tree, ""]))
        self.run(
            f"add qos {','.join(qos)} Flags=DenyOnLimit",
            "modify qos where name=normal set Flags=DenyOnLimit",
            f"load file={self.folder}/tree",
        )

    def set_limits(self, fake: FakeSite, *, gpus: bool = False) -> None:
        """Sets the limits of a site's QOS.

        Args:
            fake: the site.
            gpus: only those of GPUs: the database knows GPUs since a slurmctld has reported some.
        """
        wanted = {name: _qos_words(limits, gpus=gpus) for name, limits in _qos_of(fake).items()}
        if gpus:
            wanted = {name: words for name, words in wanted.items() if "gres" in words}
        else:
            wanted = {**{name: _qos_words(Qos()) for name in self.limited}, **wanted}
            self.limited = {name for name, words in wanted.items() if words != _qos_words(Qos())}
        commands = [
            f"modify qos where name={','.join(name for name in wanted if wanted[name] == words)} set {words}"
            for words in dict.fromkeys(wanted.values())
        ]
        if commands:
            self.run(*commands)


def _qos_of(fake: FakeSite) -> dict[str, Limits]:
    """The QOS of a site, with those that a partition needs."""
    of_partitions = {_partition_qos(p): p.limits for p in fake.partitions if p.limits.node_minutes}
    only_minutes = {n: Qos(node_minutes=limits.node_minutes) for n, limits in of_partitions.items()}
    return {**fake.qos, **only_minutes}


def _qos_words(limits: Limits, *, gpus: bool = False) -> str:
    """The limits of a QOS, as sacctmgr writes them; -1 removes one."""
    if gpus:
        most = limits.max_gpus if isinstance(limits, Qos) else None
        return f"MaxTRESPerJob=gres/gpu={most}" if most else ""
    fewest = limits.min_nodes if limits.min_nodes > 1 else -1
    return (
        f"MaxWall={limits.max_time or -1} MaxTRESPerJob=node={limits.max_nodes or -1} "
        f"MinTRESPerJob=node={fewest} MaxTRESMinsPerJob=node={limits.node_minutes or -1}"
    )


@contextlib.contextmanager
def running_accounting(sites: Sequence[FakeSite]) -> Iterator[Accounting]:
    """Starts munged, MariaDB and slurmdbd for these sites; needs root."""
    need_root()
    mariadbd, slurmdbd, *_ = need("mariadbd", "slurmdbd", "munged", "sacctmgr", "setpriv")
    with part_folder("sites") as folder, running_munge(folder), contextlib.ExitStack() as stack:
        database_socket, (port,) = folder / "mariadb", free_ports(1)
        env = clean_environment(
            HOME=folder, SLURM_CONF=folder / "slurm.conf", MYSQL_UNIX_PORT=database_socket
        )
        data = folder / "database"
        data.mkdir()
        # In memory if that is allowed: a database creates many files. It is unmounted with its folder.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", data], capture_output=True, check=False)
        _initialize_database(mariadbd, data, env)
        own = [f"--datadir={data}", f"--socket={database_socket}"]
        command = [mariadbd, "--no-defaults", "--user=root", *own, "--skip-networking", *_SMALL]
        command.append(f"--pid-file={folder}/mariadb.pid")
        daemon(stack, command, folder / "mariadb.log", env, database_socket.exists)
        accounting = Accounting(folder, port, env)
        _write_accounting(accounting)
        daemon(
            stack,
            [slurmdbd, "-D"],
            folder / "slurmdbd.log",
            env,
            lambda: (
                not subprocess.run(
                    ["sacctmgr", "show", "tres"], env=env, capture_output=True, timeout=READY_S
                ).returncode
            ),
        )
        accounting.add(sites)
        yield accounting


def _initialize_database(mariadbd: str, data: Path, env: dict[str, str]) -> None:
    """Makes the system tables of an empty database: slurmdbd needs those of stored procedures.

    ``mariadb-install-db`` would do it, but needs programs of another package.
    """
    tables = Path("/usr/share/mysql/mysql_system_tables.sql").read_text()
    done = subprocess.run(
        [mariadbd, "--no-defaults", "--user=root", f"--datadir={data}", "--bootstrap", *_SMALL],
        input=f"CREATE DATABASE mysql;\nUSE mysql;\n{tables}",
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.fail(
            f"mariadbd --bootstrap ended with {done.returncode}:\n{done.stderr[-2000:]}", pytrace=False
        )


def _write_accounting(accounting: Accounting) -> None:
    folder, host = accounting.folder, short_host_name()
    munge = [f"AuthInfo=socket={munge_socket(folder)}", "AuthType=auth/munge"]
    lines = [
        *munge,
        f"DbdHost={host}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={accounting.port}",
        "SlurmUser=root",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",  # by the socket
        "StorageUser=root",
        "StorageLoc=accounting",
        f"PidFile={folder}/slurmdbd.pid",
        f"LogFile={folder}/slurmdbd.messages",
    ]
    path = folder / "slurmdbd.conf"
    path.touch(mode=0o600)
    path.write_text("\n".join([*lines, ""]))
    # sacctmgr reads a slurm.conf before there is a cluster.
    tool = ["ClusterName=none", f"SlurmctldHost={host}(127.0.0.1)", "SlurmUser=root", *munge]
    nodes = ["NodeName=none", "PartitionName=none Nodes=none"]
    (folder / "slurm.conf").write_text("\n".join([*tool, *accounting.lines(), *nodes, ""]))


@contextlib.contextmanager
def running_site(fake: FakeSite, accounting: Accounting) -> Iterator[RunningSlurm]:
    """Starts the Slurm of a site. Its commands run as an ordinary user."""
    folder = accounting.folder / fake.name
    folder.mkdir()
    accounting.set_limits(fake)
    lines = accounting.lines()
    with running_cluster(folder, accounting.folder, configuration(fake, lines)) as part:
        accounting.set_limits(fake, gpus=True)
        (setpriv,) = need("setpriv")
        part.user = (setpriv, f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", "--")
        yield part
