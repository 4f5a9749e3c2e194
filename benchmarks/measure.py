"""Measures time, CPU time and memory of commands and their daemons, by cgroup (v1 or v2)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_PAGE = os.sysconf("SC_PAGE_SIZE")


class CommandFailed(Exception):
    """A measured command failed. The message contains the end of its output."""


@dataclass(frozen=True)
class Figures:
    """The cost of a command and of the daemons that worked for it."""

    seconds: float
    cpu: float
    """CPU seconds."""
    rss: int
    """Peak of the resident memory in bytes, the sum over all processes."""
    pss: int
    """The same with shared pages counted once."""


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    values = {
        name: median(getattr(r, name) for r in runs) for name in ("seconds", "cpu", "rss", "pss")
    }
    return Figures(values["seconds"], values["cpu"], int(values["rss"]), int(values["pss"]))


class Cgroup:
    """A new cgroup (requires root). Engines use ``name`` as the parent of the cgroups of their containers."""

    def __init__(self, name: str) -> None:
        self._top = Path("/sys/fs/cgroup")
        self.name = f"/{name}"
        self._v1 = (self._top / "cpuacct").is_dir()
        self.path = (self._top / "cpuacct" if self._v1 else self._top) / name
        self._own = self.path / "own"  # version 2 allows processes in leaves only
        self._own.mkdir(parents=True)

    def add(self, pid: int) -> None:
        """Moves a process and all of its descendants into the cgroup."""
        (self._own / "cgroup.procs").write_text(str(pid))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(OSError):
                    self.add(int(child))

    def cpu(self) -> float:
        """CPU seconds of all processes that ran in it so far."""
        if self._v1:
            return int((self.path / "cpuacct.usage").read_text()) / 1e9
        match = re.search(r"usage_usec (\d+)", (self.path / "cpu.stat").read_text())
        assert match is not None
        return int(match[1]) / 1e6

    def pids(self) -> list[int]:
        """The processes in it now."""
        found = []
        for file in self.path.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found += [int(p) for p in file.read_text().split()]
        return found

    def remove(self) -> None:
        """Removes the cgroup. Processes that still run in it move to its parent."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                (self.path.parent / "cgroup.procs").write_text(str(pid))
        name = self.path.name
        # version 1: engines make cgroups of this name in the hierarchies of all controllers
        for path in self._top.glob(f"*/{name}") if self._v1 else [self.path]:
            for folder in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                path.rmdir()


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


class _Watch(threading.Thread):
    """Samples the memory of a cgroup's processes: RSS ten times per second, PSS every fourth time."""

    def __init__(self, group: Cgroup) -> None:
        super().__init__(daemon=True)
        self.rss = self.pss = 0
        self._group = group
        self._end = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self._end.wait(0.1):
            pids = self._group.pids()
            self.rss = max(self.rss, sum(map(_resident, pids)))
            if turn % 4 == 0:
                self.pss = max(self.pss, sum(map(_proportional, pids)))
            turn += 1

    def stop(self) -> None:
        self._end.set()
        self.join()


class Meter:
    """Measures what the processes of a cgroup do."""

    def __init__(self, group: Cgroup) -> None:
        self.group = group
        self.figures: Figures | None = None

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measures the block; ``figures`` has the result. Earlier writes are flushed to the disk first."""
        os.sync()
        watch = _Watch(self.group)
        cpu, start = self.group.cpu(), time.monotonic()
        watch.start()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            watch.stop()
            self.figures = Figures(seconds, self.group.cpu() - cpu, watch.rss, watch.pss)

    def run(self, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> str:
        """Runs a command in the cgroup and returns its standard output.

        Raises:
            CommandFailed: its exit code is not 0.
        """
        own = str(self.group.path / "own" / "cgroup.procs")

        def enter() -> None:
            descriptor = os.open(own, os.O_WRONLY)  # between fork and exec: system calls only
            os.write(descriptor, str(os.getpid()).encode())
            os.close(descriptor)

        done = subprocess.run(
            [str(c) for c in command],
            env=dict(env),
            cwd=cwd,
            capture_output=True,
            text=True,
            preexec_fn=enter,
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise CommandFailed(
                f"exit code {done.returncode}: {' '.join(map(str, command))}\n{tail}"
            )
        return done.stdout
