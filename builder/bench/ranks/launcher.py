"""The launcher: starts ranks, receives the events of all of them, and makes one report."""

from __future__ import annotations

import argparse
import selectors
import socket
import time
from functools import partial

from ..core import Item
from ..machine.facts import host_name
from ..machine.processor import load_average
from .child import Lines, Process, complain, encode
from .merge import merged
from .plan import Launch
from .rank import Rank
from .unit import CHUNK, Unit
from .watchdog import Watchdog

#: How long to wait for events before the watchdog looks again.
_TICK_S = 0.5


class Launcher(Unit):
    """Unit 0. The package's docstring explains the protocol."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        super().__init__(options, launch, folder)
        #: When the time limit began: it does not count while a rank starts and imports.
        self.begun = time.monotonic()
        self.ranks = [Rank(number, self.begun) for number in range(launch.units * launch.ranks)]
        self.watchdog = Watchdog(self.ranks, options, f"{launch.address}, port {launch.port}", self)
        #: The connection to the relay of a rank, by the rank's number.
        self.connections: dict[int, socket.socket] = {}
        #: The socket that listens, and the connections of all relays.
        self.server: socket.socket | None = None
        self.relays: list[socket.socket] = []

    def run(self) -> None:
        """Return when every rank is DONE, or the time is up. Kill all ranks of this unit."""
        try:
            if self.launch.units > 1:
                self._listen()
            self.start_ranks()
            while not all(rank.done for rank in self.ranks) and self._look():
                self.handle(max(0.0, min(self._left_s(), _TICK_S)))
        finally:
            self.kill_all()

    def _left_s(self) -> float:
        return self.begun + float(self.options.timeout) - time.monotonic()

    def _look(self) -> bool:
        """Apply the rules of the watchdog. Returns whether any time is left."""
        now = time.monotonic()
        # This process may have been stopped for long: events that wait since then count as received.
        while self._left_s() > 0 and self.handle(0):
            pass
        unfinished = [rank for rank in self.ranks if not rank.done]
        if any(rank.starts for rank in unfinished):
            self.begun = now
        if unfinished and self._left_s() <= 0:
            self.watchdog.end_hung(unfinished, self.options.timeout)
            return False
        self.watchdog.evaluate(now)
        return True

    # this unit's ranks

    def started(self, number: int, process: Process) -> None:
        """Record the process of a rank."""
        self.ranks[number].pid = process.pid
        self.ranks[number].connect(host_name())

    def receive(self, number: int, event: Item) -> None:
        """Apply an event of a rank."""
        if "begin" in event and number == 0 and self.options.progress:
            complain(f"begin {event['begin']}")
        self.ranks[number].receive(event)

    def lost(self, number: int, seen: str, advice: str) -> None:
        """Report a rank that ended too early."""
        self.watchdog.mark_lost(self.ranks[number], seen, advice)

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
        read = partial(self._read_relay, relay, Lines())
        self.selector.register(relay, selectors.EVENT_READ, read)

    def _read_relay(self, relay: socket.socket, lines: Lines) -> None:
        """Receive events of the ranks behind a relay."""
        try:
            data = relay.recv(CHUNK)
            events = lines.feed(data)
        except (OSError, ValueError):
            data, events = b"", []
        for event in events:
            number = event.get("rank")
            if isinstance(number, int) and self.launch.ranks <= number < len(self.ranks):
                self._receive_from_relay(self.ranks[number], event, relay)
        if not data:
            self.selector.unregister(relay)
            for number in [number for number, own in self.connections.items() if own is relay]:
                seen = f"the connection ended in {self.ranks[number].step}"
                self.lost(number, seen, "its node or process ended: see the job's log")

    def _receive_from_relay(self, rank: Rank, event: Item, relay: socket.socket) -> None:
        if "hello" in event:
            rank.connect(str(event["hello"]))
            self.connections[rank.number] = relay
        elif "gone" in event:
            self.lost(rank.number, *event["gone"])
        else:
            rank.receive(event)

    # the actions of the watchdog

    def send(self, rank: Rank, order: Item) -> None:
        """Send an order to a rank. If it has ended, its pipe or connection reports that, too."""
        if rank.number in self.processes:
            self.order(rank.number, order)
            return
        try:
            self.connections[rank.number].sendall(encode({**order, "rank": rank.number}))
        except (OSError, KeyError):
            pass

    def stop(self, rank: Rank) -> None:
        """Kill a rank, on whichever node it is."""
        rank.mark_done()
        if rank.number in self.processes:
            self.kill(rank.number)
        else:
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
    """The GPUs of a rank, its own first, with their states ``after`` the measurements."""
    devices = rank.facts.get("devices") or []
    return [dict(device, after={} if number else rank.after) for number, device in enumerate(devices)]
