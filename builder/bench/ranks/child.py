"""The process of a rank: forking it, what runs in it, the connection to it, ending it."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import signal
import socket
import sys
import time
from argparse import Namespace
from typing import Any

from ..core import Item, RankPosition, Run, one_line
from ..examine import examine
from ..machine.files import read

#: Exit code of a rank in which the benchmark failed.
_EXIT_BROKEN = 70
#: The most bytes that one read takes.
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Link:
    """A connection to a rank, its relay, or the launcher: messages are lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def send(self, message: Item) -> None:
        """Send a message. If the other process has ended, :meth:`receive` reports that."""
        try:
            self.connection.sendall((json.dumps(message) + "\n").encode())
        except OSError:
            pass

    def receive(self) -> list[Item] | None:
        """Return the messages that have arrived; None: the other process has ended."""
        try:
            data = self.connection.recv(_CHUNK)
            *lines, self._rest = (self._rest + data).split(b"\n")
            values = [json.loads(line) for line in lines if line]
        except (OSError, ValueError):
            return None
        return [value for value in values if isinstance(value, dict)] if data else None


def complain(text: str) -> None:
    """Print a line on standard error, by one write: several processes share it."""
    os.write(2, f"smoke: {text}\n".encode("utf-8", "replace"))


def start_rank(options: Namespace, place: RankPosition, folder: str) -> tuple[int, socket.socket]:
    """Fork a rank. Returns its process and this end of the connection to it."""
    own, other = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        own.close()
        _run_rank(options, place, folder, other)
    other.close()
    return pid, own


def _run_rank(
    options: Namespace, place: RankPosition, folder: str, connection: socket.socket
) -> None:
    """Run everything that happens in the forked process. Does not return."""
    try:
        _prepare_process(place, folder)
        run = Run(options, place)
        launcher, incoming = Link(connection), connection.makefile("rb")

        def agree() -> Item:
            line = incoming.readline() or b'{"go": false, "why": "the launcher has ended"}'
            return dict(json.loads(line))

        for event in examine(run, agree):
            launcher.send(plain(event))
        if place.ranks > 1:
            incoming.readline()  # wait to be killed: other ranks may still use connections to this one
        sys.stderr.flush()
        os._exit(0)
    except BaseException as e:
        complain(one_line(e))
        os._exit(_EXIT_BROKEN)


def _prepare_process(place: RankPosition, folder: str) -> None:
    os.setpgid(0, 0)  # so that the rank is killed together with all that it starts
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # dies with its parent
    os.dup2(2, 1)  # the report goes to standard output: nothing that libraries print may get there
    sys.stdout = sys.stderr  # with a buffer that a rank that is killed does not lose
    if place.ranks > 1:
        _set_variables(place, folder)


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).prctl(option, value)
    except (OSError, AttributeError):
        pass


def _set_variables(place: RankPosition, folder: str) -> None:
    """Set the variables that torch.distributed and NCCL read."""
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.ranks))
    os.environ.update(LOCAL_RANK=str(place.local_rank), NCCL_DEBUG="INFO")
    os.environ["NCCL_DEBUG_FILE"] = os.path.join(folder, "nccl.%h.%p")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,TUNING")
    if place.init_method.startswith("file:"):
        # One node: gloo must not depend on the host's name, which may lead to no address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it. NaN and infinity become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def end_process(pid: int) -> None:
    """Kill a rank and all that it started, except for processes that hang in the kernel."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass
    _wait_for(pid, 2.0)


def adopt_orphans() -> list[str]:
    """Make this process the parent of what ranks leave behind; return its present children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return _children()


def end_orphans(before: list[str]) -> None:
    """Kill what ranks have left behind: a rank that is killed cannot end the programs that it runs.

    Args:
        before: from :func:`adopt_orphans`: children of this process that no rank has started.
    """
    for _ in range(10):  # what is killed leaves its own children behind
        orphans = [pid for pid in _children() if pid not in before]
        if not orphans:
            return
        for pid in orphans:
            end_process(int(pid))


def _children() -> list[str]:
    return read(f"/proc/self/task/{os.getpid()}/children").split()


#: The advice about a rank that a signal ended.
_SIGNALS = {
    "SIGKILL": "probably out of memory: raise the memory limit of the container or job",
    "SIGILL": "a library was built for another processor than this one: lock a build for this processor",
    "SIGBUS": "shared memory or a disk is full: --shm-size; see memory.shm",
}


def describe_death(pid: int) -> tuple[str, str]:
    """Return the end of a rank's process that closed its connection, and the advice."""
    status = _wait_for(pid)
    if status is None:
        advice = "a driver holds the process, or a process that it started: "
        advice += "see the kernel's log (dmesg)"
        return "the process closed its connection, and did not end", advice
    if not os.WIFSIGNALED(status):
        return "the process exited", "a library ended the process: see the output above"
    number = os.WTERMSIG(status)
    names = {int(known): known.name for known in signal.Signals}
    name = names.get(number, f"signal {number}")
    advice = _SIGNALS.get(name, "a library crashed: check the lock, and the host's driver")
    return f"the process was ended by {name}", advice


def _wait_for(pid: int, patience_s: float = 60) -> int | None:
    """Return the status of a process that is about to end; None if it does not.

    The kernel closes a process's files first. Then it may need seconds to return the memory of a
    GPU.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # the relay has killed it
            return None
        if done:
            return status
        time.sleep(0.01)
    return None


def process_state(pid: int) -> str:
    """Return the reason why a process here makes no progress, for a message; empty if unknown."""
    found = re.search(r"^State:\s+([TD])", read(f"/proc/{pid}/status"), re.MULTILINE)
    states = {"T": ", which is stopped", "D": ", which hangs in the kernel"}
    return states[found[1]] if found else ""
