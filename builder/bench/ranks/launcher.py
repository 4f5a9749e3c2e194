"""The launcher: starts ranks, receives the events of all of them, and makes one report."""

from __future__ import annotations

import argparse
import itertools
import re
import selectors
import socket
import time
from typing import Tuple

from ..core import Item, median_key
from ..machine.facts import host_name
from ..schema import SEVERITY
from .child import Link, complain, describe_death, end_process, start_rank
from .positions import Launch
from .rank import Rank
from .watchdog import Watchdog

#: A result and the rank that it comes from.
Result = Tuple[Rank, Item]

#: The fields that the report has for each rank.
_OF_RANK = re.compile("median_|mad_|(size|clock_mhz|power_w|temperature_c|throttled|bound)$")
#: How long to wait for events before the watchdog looks again.
_TICK_S = 0.5


class Launcher:
    """Unit 0. The package's docstring explains the protocol."""

    def __init__(self, options: argparse.Namespace, launch: Launch, folder: str) -> None:
        """``folder`` is for temporary files."""
        self.options = options
        self.launch = launch
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        #: When the time limit began: it does not count while a rank starts and imports.
        self.begun = time.monotonic()
        self.ranks = [Rank(number, self.begun) for number in range(launch.units * launch.ranks)]
        self.watchdog = Watchdog(self.ranks, options, f"{launch.address}, port {launch.port}")
        #: The rank of each connection that is known to be one's.
        self.links: dict[Link, Rank] = {}
        #: The socket that listens for relays.
        self.server: socket.socket | None = None

    def run(self) -> None:
        """Return when every rank is DONE, or the time is up. Kill all ranks of this unit."""
        try:
            if self.launch.units > 1:
                self._listen()
            self.start_ranks()
            while not all(rank.done for rank in self.ranks) and self._look():
                self.handle(max(0.0, min(self._left_s(), _TICK_S)))
        finally:
            for rank in self.ranks:
                if rank.pid:
                    end_process(rank.pid)

    def start_ranks(self) -> None:
        """Start all ranks of this process."""
        for rank in self.ranks[: self.launch.ranks]:
            place = self.launch.place(rank.number, self.folder)
            rank.pid, connection = start_rank(self.options, place, self.folder)
            self.add(connection, rank)

    def add(self, connection: socket.socket, rank: Rank | None = None) -> None:
        """Receive messages of a rank of this process, or of a relay, which names its rank."""
        link = Link(connection)
        self.selector.register(connection, selectors.EVENT_READ, link)
        if rank is not None:
            self._connect(link, rank, host_name())

    def _connect(self, link: Link, rank: Rank, host: str) -> None:
        self.links[link] = rank
        rank.connect(host, link)

    def _left_s(self) -> float:
        return self.begun + float(self.options.timeout) - time.monotonic()

    def _look(self) -> bool:
        """Apply the rules of the watchdog; return whether any time is left."""
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

    def handle(self, limit_s: float) -> bool:
        """Handle what has arrived, or wait for it; return whether anything has."""
        ready = self.selector.select(limit_s)
        for key, _ in ready:
            if isinstance(key.data, Link):
                self._read(key.data)
            else:
                self.add(key.data.accept()[0])
        return bool(ready)

    def _read(self, link: Link) -> None:
        """Apply the messages of a rank or its relay."""
        messages = link.receive()
        for message in messages or ():
            self._apply(link, message)
        if messages is None:
            self.selector.unregister(link.connection)
            rank = self.links.get(link)
            if rank is not None and not rank.done:
                lost = "the connection ended", "its node or process ended: see the job's log"
                self.watchdog.mark_lost(rank, *(describe_death(rank.pid) if rank.pid else lost))

    def _apply(self, link: Link, message: Item) -> None:
        # Anybody can connect to the port: without a valid "hello" nothing is applied.
        rank = self.links.get(link)
        if "hello" in message and message["hello"] in range(self.launch.ranks, len(self.ranks)):
            self._connect(link, self.ranks[message["hello"]], str(message["host"]))
        elif rank is not None and "gone" in message:
            self.watchdog.mark_lost(rank, *message["gone"])
        elif rank is not None:
            if "begin" in message and rank.number == 0 and self.options.progress:
                complain(f"begin {message['begin']}")
            rank.receive(message)

    def _listen(self) -> None:
        self.server = socket.socket()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.server.bind(("", self.launch.port))
        self.server.listen(self.launch.units)
        self.selector.register(self.server, selectors.EVENT_READ, self.server)

    def dismiss(self, verdict: str) -> None:
        """Send the verdict to the other units, which exit with its code."""
        for rank in self.ranks:
            if not rank.pid:
                rank.send({"verdict": verdict})
        if self.server is not None:
            self.server.close()

    def report(self) -> Item:
        """Return the fields of the report that depend on the ranks."""
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
        """Return the facts of the first rank that has any, with the GPUs of all ranks."""
        out: Item = dict(next((rank.facts for rank in self.ranks if rank.facts), {}))
        # Nodes may run different images: each rank reports the lock that it sees.
        locks = {str(rank.facts.get("lock")) for rank in self.ranks if rank.facts}
        if out.pop("lock", ""):
            out["locks"] = sorted(locks)
        devices = [device for rank in self.ranks for device in _devices(rank)]
        if devices:
            out["devices"] = devices
        return out


def _devices(rank: Rank) -> list[Item]:
    """Return the GPUs of a rank, its own first, with their states ``after`` the measurements."""
    devices = rank.facts.get("devices") or []
    states = itertools.chain([rank.after], itertools.repeat({}))
    return [dict(device, after=after) for device, after in zip(devices, states)]


def merged(results: list[Result], ranks: int, figures: bool = False) -> list[Item]:
    """Return one item per id: the worst result, with the rank it comes from.

    If all passed, that is the slowest device's: a job that uses all of them is as fast as the
    slowest.

    Args:
        results: of probes or of measurements, in the order of ranks.
        ranks: how many ranks there are.
        figures: the results are measurements: each item gets the figures of all ranks.
    """
    by_id: dict[str, list[Result]] = {}
    for rank, item in results:
        by_id.setdefault(item["id"], []).append((rank, item))

    return [_worst(found, ranks, figures) for found in by_id.values()]


def _worst(found: list[Result], ranks: int, figures: bool) -> Item:
    """Return the worst of the results with one id, see :func:`merged`."""
    rank, worst = max(found, key=_badness)
    item, status = dict(worst), worst["status"]
    if status in ("warn", "fail") and ranks > 1:
        item["seen"] = f"rank {rank.number} ({rank.host}): {worst['seen']}"
        if not figures:
            item["ranks"] = [r.number for r, result in found if result["status"] == status]
    if figures and len(found) > 1:
        item["ranks"] = [_figures(*result) for result in found]
    return item


def _badness(result: Result) -> tuple[int, float, float]:
    """Return severity, then slowness, then how early it came: it may have caused the others."""
    rank, item = result
    return SEVERITY[item["status"]], _slowness(item), -rank.when.get(item["id"], 0.0)


def _slowness(item: Item) -> float:
    """Return a number that is larger for slower devices, and 0 for results without figures."""
    key = median_key(item)
    if not key or item["status"] == "fail":
        return 0.0
    value = float(item[key] or 0.0)
    return value if item.get("better") == "lower" else -value


def _figures(rank: Rank, item: Item) -> Item:
    """Return the part of one rank's measurement that goes into the report."""
    return {
        "rank": rank.number,
        "host": rank.host,
        "device": str(item.get("device", "")),
        "status": item["status"],
        **{key: value for key, value in item.items() if _OF_RANK.match(key)},
    }
