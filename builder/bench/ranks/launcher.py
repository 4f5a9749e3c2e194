"""The launcher: starts ranks, receives the events of all of them, and makes one report."""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import time
from functools import partial
from typing import Any, Callable

from ..core import Item
from ..machine.facts import host_name
from ..machine.processor import load_average
from .child import describe_death, end_process, start_rank
from .merge import merged, uneven_ranks
from .messages import Lines, complain, encode, write_all
from .plan import Launch
from .rank import Rank
from .watchdog import Watchdog

#: How long to wait for events before the watchdog looks again.
_TICK_S = 0.5
_CHUNK = 1 << 16


class Launcher:
    """Unit 0. The package's docstring explains the protocol."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        self.options = options
        self.launch = launch
        self.folder = folder
        self.started = time.monotonic()
        self.ranks = [Rank(number, self.started) for number in range(launch.units * launch.ranks)]
        self.watchdog = Watchdog(self.ranks, options.stall, f"{launch.address}, port {launch.port}", self)
        self.selector = selectors.DefaultSelector()
        #: How to send to a rank, by its number.
        self.senders: dict[int, Callable[[bytes], Any]] = {}
        #: The socket that listens, and the connections of all relays.
        self.server: socket.socket | None = None
        self.relays: list[socket.socket] = []

    def run(self) -> None:
        """Returns when every rank is DONE, or the time is up. Kills all ranks of this unit."""
        deadline = self.started + self.options.timeout
        try:
            if self.launch.units > 1:
                self._listen()
            for number in range(self.launch.ranks):
                self._start(number)
            now = time.monotonic()
            while not all(rank.done for rank in self.ranks):
                self._receive(max(0.0, min(deadline - now, _TICK_S)))
                now = time.monotonic()
                # This process may have been stopped for long: events that wait since then count as received.
                while self._receive(0) and time.monotonic() < deadline:
                    pass
                if all(rank.done for rank in self.ranks):
                    break
                if now >= deadline:
                    unfinished = [rank for rank in self.ranks if not rank.done]
                    self.watchdog.end_hung(unfinished, self.options.timeout)
                    break
                self.watchdog.evaluate(now)
        finally:
            for rank in self.ranks:
                if rank.pid is not None:
                    end_process(rank.pid)

    def _receive(self, limit_s: float) -> bool:
        """Receives what has arrived, or waits for it. Returns whether anything has."""
        ready = self.selector.select(limit_s)
        for key, _ in ready:
            key.data()
        return bool(ready)

    # this unit's ranks

    def _start(self, number: int) -> None:
        place = self.launch.place(number, self.folder)
        process = start_rank(self.options, place, self.folder)
        rank = self.ranks[place.rank]
        rank.pid = process.pid
        rank.connect(host_name())
        self.senders[rank.number] = partial(write_all, process.orders)
        read = partial(self._read_pipe, rank, process.events, Lines())
        self.selector.register(process.events, selectors.EVENT_READ, read)

    def _read_pipe(self, rank: Rank, pipe: int, lines: Lines) -> None:
        """Receives events of a rank that this process started."""
        data = os.read(pipe, _CHUNK)
        for event in lines.feed(data):
            if "begin" in event and rank.number == 0 and self.options.progress:
                complain(f"begin {event['begin']}")
            rank.receive(event)
        if not data:
            self.selector.unregister(pipe)
            os.close(pipe)
            if not rank.done and rank.pid is not None:
                self.watchdog.mark_lost(rank, *describe_death(rank.pid, rank.step))

    # ranks of other units

    def _listen(self) -> None:
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind(("", self.launch.port))
        self.server.listen(self.launch.units)
        self.selector.register(self.server, selectors.EVENT_READ, partial(self._accept, self.server))

    def _accept(self, server: socket.socket) -> None:
        relay = server.accept()[0]
        self.relays.append(relay)
        read = partial(self._read_relay, relay, Lines(), [])
        self.selector.register(relay, selectors.EVENT_READ, read)

    def _read_relay(self, relay: socket.socket, lines: Lines, own: list[Rank]) -> None:
        """Receives events of the ranks behind a relay; ``own`` collects these ranks."""
        try:
            data = relay.recv(_CHUNK)
            events = lines.feed(data)
        except (OSError, ValueError):
            data, events = b"", []
        for event in events:
            number = event.get("rank")
            if isinstance(number, int) and self.launch.ranks <= number < len(self.ranks):
                self._receive_from_relay(self.ranks[number], event, relay, own)
        if not data:
            self.selector.unregister(relay)
            for rank in own:
                seen = f"the connection ended in {rank.step}"
                self.watchdog.mark_lost(rank, seen, "its node or process ended: see the job's log")

    def _receive_from_relay(self, rank: Rank, event: Item, relay: socket.socket, own: list[Rank]) -> None:
        if "hello" in event:
            own.append(rank)
            rank.connect(str(event["hello"]))
            self.senders[rank.number] = relay.sendall
        elif "gone" in event:
            self.watchdog.mark_lost(rank, *event["gone"])
        else:
            rank.receive(event)

    # the actions of the watchdog

    def send(self, rank: Rank, order: Item) -> None:
        """Sends an order to a rank. If it has ended, its pipe or connection reports that, too."""
        try:
            self.senders[rank.number](encode({**order, "rank": rank.number}))
        except (OSError, KeyError):
            pass

    def stop(self, rank: Rank) -> None:
        """Kills a rank, on whichever node it is."""
        rank.mark_done()
        if rank.pid is not None:
            end_process(rank.pid)
        elif rank.number in self.senders:
            self.send(rank, {"stop": True})

    # the end

    def dismiss(self, verdict: str) -> None:
        """Sends the verdict to the other units, which exit with its code."""
        for relay in self.relays:
            try:
                relay.sendall(encode({"verdict": verdict}))
            except OSError:
                pass
            relay.close()
        if self.server is not None:
            self.server.close()

    def report(self) -> Item:
        """The fields of the report that depend on the ranks."""
        count = len(self.ranks)
        probes = merged([(rank, item) for rank in self.ranks for item in rank.probes], count)
        results = [(rank, item) for rank in self.ranks for item in rank.measurements]
        measurements = merged(results, count, figures=True)
        probes += self.watchdog.findings
        if count > 1:
            probes += uneven_ranks(measurements)
        nodes = {rank.host for rank in self.ranks if rank.host}
        return {
            "facts": self._facts(),
            "probes": probes,
            "measurements": measurements,
            "launch": {"ranks": count, "nodes": len(nodes) or 1, "by": self.launch.by},
        }

    def _facts(self) -> Item:
        """The facts of the first rank that has any, with the GPUs of all ranks."""
        out: Item = {}
        for rank in self.ranks:
            if rank.facts:
                out = dict(rank.facts)
                break
        load = load_average()
        if out and load is not None:
            out["load_after"] = load
        devices = [device for rank in self.ranks for device in _devices(rank)]
        if devices:
            out["devices"] = devices
        return out


def _devices(rank: Rank) -> list[Item]:
    """The GPUs of a rank, each with its state ``after`` the measurements."""
    devices = rank.facts.get("devices") or []
    keys = [str(index) for index in range(len(devices))]
    if len(rank.after) == len(devices):  # a single GPU of a rank may have another number than 0
        keys = list(rank.after)
    return [dict(device, after=rank.after.get(key, {})) for key, device in zip(keys, devices)]
