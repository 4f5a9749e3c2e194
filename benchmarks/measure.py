"""Seconds, CPU seconds and memory of commands and of the daemons that work for them, by cgroup (v1 or v2)."""

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
    """A command that is measured has failed; the message holds the end of its output."""


@dataclass(frozen=True)
class Figures:
    """``seconds`` and ``cpu`` in seconds; ``rss`` and ``pss`` are peaks in bytes, summed over all processes."""

    seconds: float
    cpu: float
    rss: int
    pss: int


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    values = {name: median(getattr(r, name) for r in runs) for name in ("seconds", "cpu", "rss", "pss")}
    return Figures(values["seconds"], values["cpu"], int(values["rss"]), int(values["pss"]))


class Cgroup:
    """A cgroup of our own (root only). ``name`` is what engines take as the parent of their containers' cgroups."""

    def __init__(self, name: str) -> None:
        top = Path("/sys/fs/cgroup")
        self.name = f"/{name}"
        self._v1 = (top / "cpuacct").is_dir()
        self.path = (top / "cpuacct" if self._v1 else top) / name
        self._own = self.path / "own"  # version 2 wants processes in leaves only
        self._own.mkdir(parents=True)

    def add(self, pid: int) -> None:
        """Moves a process in, with all its descendants."""
        (self._own / "cgroup.procs").write_text(str(pid))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(OSError):
                    self.add(int(child))

    def cpu(self) -> float:
        """CPU seconds of everything that ever ran in it."""
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
        """Removes it; whatever still runs in it moves up first."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                (self.path.parent / "cgroup.procs").write_text(str(pid))
        for folder in sorted((p for p in self.path.rglob("*") if p.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            self.path.rmdir()


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
    """Looks at the memory of a cgroup's processes ten times a second, and every fourth time at what they share."""

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
    """Measures what happens between ``start`` and ``stop`` in a cgroup."""

    def __init__(self, group: Cgroup) -> None:
        self.group = group
        self.figures: Figures | None = None

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measures the block; ``figures`` has the result. What was written before is on the disk first."""
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
        """Runs a command in the cgroup and gives its stdout.

        Raises:
            CommandFailed: it ended with another code than 0.
        """
        own = str(self.group.path / "own" / "cgroup.procs")

        def enter() -> None:
            with open(own, "w") as procs:  # noqa: PTH123 (nothing more than needed between fork and exec)
                procs.write(str(os.getpid()))

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
            raise CommandFailed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{tail}")
        return done.stdout
