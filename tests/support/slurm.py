"""A private Slurm with two simulated nodes on this machine. Each has a host name and a disk (``/mnt``).

It does not use or change a Slurm or munge of the host: key, sockets, ports, configuration, spool and logs are
in one temporary folder. The slurmd of each node runs in its own mount and host name namespace, whose
``/etc/hosts`` contains both nodes. It is Debian's Slurm of this machine, or that of another suite
(:data:`RELEASES`), whose commands then are the first in PATH, and on the nodes those in ``/usr/bin``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from builder.deliver.site.scheduler import ENDED
from tests.support.install_registries import SLURM_SUITES, install_slurm
from tests.support.parts import (
    READY_S,
    clean_environment,
    installed,
    need,
    need_root,
    part_folder,
    start,
    stop,
    wait_for,
)
from tests.support.ports import free_ports, worker
from tests.support.programs import run_program

NODES = ("node1", "node2")
#: Suites of Debian, and their Slurm; the empty name is this machine's.
RELEASES = dict(zip(("", *SLURM_SUITES), ("22.05", "24.11", "26.05"), strict=True))
#: Two nodes with 128 cores and 16 "GPUs", and partitions of shipped recipes. It has no accounting, so every
#: account and QOS is accepted.
BASE = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={socket}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={binding}
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters={consumable}
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=1
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
EnforcePartLimits=ALL
KillWait=120
MessageTimeout=100
BatchStartTimeout=600
MinJobAge=3600
FirstJobId={first_job}
SlurmdParameters=config_overrides
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] State=UNKNOWN \
{hardware} RealMemory=524288 Gres=gpu:h100:8,gpu:a100:8 Feature=gpu
GresTypes=gpu
PartitionName=DEFAULT Nodes=ALL MaxTime=2-0 State=UP
PartitionName=debug Default=YES
PartitionName=small-g
PartitionName=standard-g
PartitionName=dev-g MaxTime=3:00:00
PartitionName=gpu
PartitionName=standard
"""
GRES = "Name=gpu Type=h100 File={folder}/gpu[0-7]\nName=gpu Type=a100 File={folder}/gpu[8-15]\n"


#: Nodes with cores that do not exist, and those of this machine, to which Slurm binds.
SIMULATED = {"binding": "task/none", "consumable": "CR_Core", "hardware": "Sockets=2 CoresPerSocket=64"}
REAL = {
    "binding": "task/affinity",
    "consumable": "CR_Core_Memory",
    "hardware": f"CPUs={os.cpu_count()}",
}


@dataclass
class Slurm:
    """A running Slurm. ``env`` is the environment for its commands."""

    env: dict[str, str]
    folder: Path

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command such as ``sbatch``. With ``check``, a failure ends the test with the command's
        output."""
        return run_program(command, {**self.env, **(env or {})}, check=check, cwd=cwd)

    def disk(self, node: str) -> Path:
        """Returns the folder that a node sees as ``/mnt``: its own storage."""
        return self.folder / f"mnt-{node}"

    def submit(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> str:
        """Runs ``sbatch ARGUMENTS`` and returns the job's id."""
        return self.run("sbatch", "--parsable", *arguments, env=env, cwd=cwd).stdout.strip().partition(";")[0]

    def show(self, job: str) -> list[dict[str, str]]:
        """Returns the fields of ``scontrol show job``, for each task of a job array."""
        lines = self.run("scontrol", "--oneliner", "show", "job", job).stdout.splitlines()
        return [
            dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
            for line in lines
            if line.strip()
        ]

    def states(self, job: str) -> list[str]:
        """Returns the states of a job's tasks in their order; all waiting tasks have one entry."""
        tasks = sorted(
            self.show(job), key=lambda t: int(t.get("ArrayTaskId", "0").partition("-")[0].partition("%")[0])
        )
        return [t["JobState"] for t in tasks]

    def wait(self, job: str, patience_s: float = 300) -> list[str]:
        """Waits for the end of all tasks of a job and returns their states."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if set(states := self.states(job)) <= ENDED:
                return states
            time.sleep(0.1)
        shown = self.run("scontrol", "show", "job", job, check=False).stdout
        self.run("scancel", job, check=False)
        pytest.fail(f"job {job} did not end within {patience_s:.0f} s:\n{shown}{self.log()}", pytrace=False)

    def log(self) -> str:
        """Returns the last lines of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"{p.name}:\n" + "\n".join(p.read_text(errors="replace").splitlines()[-15:]) for p in logs
        )


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A Slurm with two nodes; needs root."""
    with running_slurm() as part:
        yield part


@contextlib.contextmanager
def running_slurm(suite: str = "", machine: Mapping[str, str] = SIMULATED) -> Iterator[Slurm]:
    """Starts munged, slurmctld and one slurmd per node. Ends them with all processes of their jobs.

    Args:
        suite: one of :data:`RELEASES`.
        machine: what the nodes have, :data:`SIMULATED` or :data:`REAL`.
    """
    need_root()
    need("munged", "slurmctld", "slurmd", "unshare", "sbatch")
    programs = installed(install_slurm, f"slurm-{suite}") if suite else None
    with part_folder("slurm") as folder, running_munge(folder):
        _write_configuration(folder, programs, machine)
        with _running_cluster(folder, programs) as part:
            yield part


@contextlib.contextmanager
def _running_cluster(folder: Path, programs: Path | None) -> Iterator[Slurm]:
    """Starts slurmctld and two slurmd in a folder with a munged and a configuration."""
    slurmctld, slurmd, unshare = need("slurmctld", "slurmd", "unshare")
    with contextlib.ExitStack() as stack:
        env = clean_environment(HOME=folder, SLURM_CONF=folder / "slurm.conf")
        if programs:
            env["PATH"] = f"{programs}:{env['PATH']}"
            slurmctld, slurmd = str(programs / "slurmctld"), str(programs / "slurmd")
        stack.callback(_end_processes_of, folder)
        part = Slurm(env, folder)

        def controller_is_up() -> bool:
            return "UP" in part.run("scontrol", "ping", check=False).stdout

        command = [slurmctld, "-D", "-f", folder / "slurm.conf"]
        controller = daemon(stack, command, folder / "slurmctld.out", env, controller_is_up)
        nodes = [_start_node(stack, part, node, [unshare, slurmd], programs) for node in NODES]
        for node, process in zip(NODES, nodes, strict=True):
            log = folder / f"slurmd-{node}.out"
            wait_for(partial(_node_is_idle, part, node), process, log, log.stem, READY_S)
        try:
            yield part
        finally:
            _cancel_all(part)
            for process in (*nodes, controller):  # all at once
                process.terminate()


def _write_configuration(folder: Path, programs: Path | None, machine: Mapping[str, str]) -> None:
    text = BASE.format(
        **machine,
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        socket=munge_socket(folder),
        ports=free_ports(3),
        first_job=1 + 188 * worker(),  # builder.bench takes port 20000 + 16 * number of the job
    )
    if programs:
        text += f"PluginDir={programs.parent}/usr/lib/x86_64-linux-gnu/slurm-wlm\n"
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(GRES.format(folder=folder))
    for number in range(16):
        (folder / f"gpu{number}").touch()
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={'disabled' if programs else 'cgroup/v1'}\n")
    (folder / "hosts").write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {' '.join(NODES)}\n")
    (folder / "state").mkdir()


def munge_socket(folder: Path) -> Path:
    """The socket of the munged in a folder."""
    return folder / "munge" / "socket"


@contextlib.contextmanager
def running_munge(folder: Path) -> Iterator[None]:
    """Starts a munged with a key of its own."""
    (munged,) = need("munged")
    (folder / "munge").mkdir()
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    options = ["--foreground", "--force", "--num-threads=2", f"--socket={munge_socket(folder)}"]
    with contextlib.ExitStack() as stack:
        command = [munged, *options, *files]
        daemon(stack, command, folder / "munged.log", clean_environment(), munge_socket(folder).exists)
        yield


def _start_node(
    stack: contextlib.ExitStack, part: Slurm, node: str, words: Sequence[str], programs: Path | None
) -> subprocess.Popen[bytes]:
    """Starts slurmd with the node's own host name, /mnt and /etc/hosts, and Slurm's programs in /usr/bin."""
    unshare, slurmd = words
    folder = part.folder
    (folder / f"spool-{node}").mkdir()
    place = part.disk(node)
    place.mkdir()
    place.chmod(0o1777)
    mounts = [f"mount --bind {folder}/hosts /etc/hosts", f"mount --bind {place} /mnt"]
    command = ["exec", slurmd, "-D", "-N", node, "-f", f"{folder}/slurm.conf"]
    if programs:
        command += ["-d", f"{programs}/slurmstepd"]
        own = [p for p in programs.iterdir() if Path("/usr/bin", p.name).exists()]
        mounts += [f"mount --bind {p.resolve()} $(realpath /usr/bin/{p.name})" for p in own]
    script = ["set -e", "cd /", f"hostname {node}", *mounts, shlex.join(command)]
    command_line = [unshare, "--mount", "--uts", "--propagation=private", "sh", "-c", "\n".join(script)]
    process = start(command_line, folder / f"slurmd-{node}.out", part.env)
    stack.callback(stop, process)
    return process


def _node_is_idle(part: Slurm, node: str) -> bool:
    return "IDLE" in part.run("scontrol", "show", "node", node, check=False).stdout


def daemon(
    stack: contextlib.ExitStack,
    command: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str],
    ready: Callable[[], bool],
) -> subprocess.Popen[bytes]:
    """Starts a server and waits until it is ready; the stack ends it."""
    process = start(command, log, env)
    stack.callback(stop, process)
    wait_for(ready, process, log, log.stem, READY_S)
    return process


def _cancel_all(part: Slurm) -> None:
    listed = part.run("squeue", "--noheader", "--array", "--format=%A", check=False).stdout.split()
    if not listed:
        return
    part.run("scancel", "--full", *listed, check=False)
    end = time.monotonic() + 20
    while part.run("squeue", "--noheader", check=False).stdout.strip() and time.monotonic() < end:
        time.sleep(0.1)


def _end_processes_of(folder: Path) -> None:
    """Kills all processes with this Slurm's configuration in their environment: step managers and jobs."""
    mark = f"SLURM_CONF={folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
