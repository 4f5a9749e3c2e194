"""A process that starts ranks and reads their events: what the launcher and a relay do alike."""

from __future__ import annotations

import argparse
import os
import selectors
from functools import partial

from ..core import Item
from .child import Lines, Process, describe_death, encode, end_process, start_rank, write_all
from .plan import Launch

#: The most bytes that one read takes.
CHUNK = 1 << 16


class Unit:
    """Ranks of this process, by number."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        self.options = options
        self.launch = launch
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        self.processes: dict[int, Process] = {}
        #: What each rank does, for the message about its end.
        self.steps: dict[int, str] = {}
        #: Ranks whose last event has come, or that this process has killed.
        self.ended: set[int] = set()

    def started(self, number: int, process: Process) -> None:
        """Record that a rank of this process has started."""
        raise NotImplementedError

    def receive(self, number: int, event: Item) -> None:
        """Apply an event of a rank of this process."""
        raise NotImplementedError

    def lost(self, number: int, seen: str, advice: str) -> None:
        """Handle a rank of this process that ended too early."""
        raise NotImplementedError

    def start_ranks(self) -> None:
        """Start all ranks of this process."""
        for own in range(self.launch.ranks):
            place = self.launch.place(own, self.folder)
            process = start_rank(self.options, place, self.folder)
            number = place.rank
            self.processes[number], self.steps[number] = process, "start"
            self.started(number, process)
            read = partial(self._read_rank, number, process, Lines())
            self.selector.register(process.events, selectors.EVENT_READ, read)

    def _read_rank(self, number: int, process: Process, lines: Lines) -> None:
        data = os.read(process.events, CHUNK)
        for event in lines.feed(data):
            self.steps[number] = str(event.get("begin", self.steps[number]))
            if "end" in event:
                self.ended.add(number)
            self.receive(number, event)
        if not data:
            self.selector.unregister(process.events)
            os.close(process.events)
            if number not in self.ended:
                self.lost(number, *describe_death(process.pid, self.steps[number]))

    def handle(self, limit_s: float) -> bool:
        """Handle what has arrived, or wait for it. Returns whether anything has."""
        ready = self.selector.select(limit_s)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def order(self, number: int, order: Item) -> None:
        """Send an order to a rank of this process. If it has ended, its other pipe reports that."""
        try:
            write_all(self.processes[number].orders, encode(order))
        except OSError:
            pass

    def kill(self, number: int) -> None:
        """Kill a rank of this process."""
        self.ended.add(number)
        end_process(self.processes[number].pid)

    def kill_all(self) -> None:
        """Kill all ranks of this process."""
        for number in self.processes:
            self.kill(number)
