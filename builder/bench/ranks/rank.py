"""A rank, as the launcher knows it."""

from __future__ import annotations

import enum
import time

from ..core import Item
from .child import Link, end_process


class State(enum.Enum):
    """The progress of a rank; the package's docstring explains the transitions."""

    STARTING = "starting"
    WORKING = "working"
    READY = "ready"
    TOGETHER = "together"
    DONE = "done"


class Rank:
    """State and results of a rank."""

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.state = State.STARTING
        #: Whether it can take part in collectives; known once it is READY.
        self.fit = False
        #: Whether it has measured alone on its node, or measures so now.
        self.had_turn = False
        #: Its node; empty while it is STARTING.
        self.host = ""
        #: Its process, if this process started it; 0: a relay did.
        self.pid = 0
        #: The connection to it, or to its relay; None while it is STARTING.
        self.link: Link | None = None
        #: The id of the probe or measurement that it runs.
        self.step = "start"
        #: When its last event came (time.monotonic).
        self.since = now

        self.facts: Item = {}
        #: State of its GPU under load.
        self.after: Item = {}
        self.probes: list[Item] = []
        self.measurements: list[Item] = []
        #: When each measurement's result came, by id.
        self.when: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """Whether it has ended, or no more events of it are used."""
        return self.state is State.DONE

    def mark_done(self) -> None:
        """Make it DONE: later events are ignored."""
        self.state = State.DONE

    def send(self, order: Item) -> None:
        """Send an order to it."""
        if self.link is not None:
            self.link.send(order)

    def stop(self) -> None:
        """Kill it, on whichever node it is."""
        self.mark_done()
        if self.pid:
            end_process(self.pid)
        else:
            self.send({"stop": True})

    def connect(self, host: str, link: Link | None = None) -> None:
        """Record that its unit has started it on a host."""
        self.host, self.link = host, link
        self.since = time.monotonic()
        if self.state is State.STARTING:
            self.state = State.WORKING

    def receive(self, event: Item) -> None:
        """Apply one of its events (see ``examine.py``)."""
        if self.done:
            return
        self.since = time.monotonic()
        if "begin" in event:
            self.step = str(event["begin"])
            if self.state is not State.STARTING:
                self.state = State.TOGETHER if event.get("together") else State.WORKING
        if "probe" in event:
            self.probes.append(event["probe"])
        if "measurement" in event:
            self.measurements.append(event["measurement"])
            self.when[event["measurement"]["id"]] = self.since
        if "facts" in event:
            self.facts = event["facts"]
        if "ready" in event:
            self.state = State.READY
            self.fit = bool(event["ready"])
        if "end" in event:
            self.after = event.get("after", {})
            self.state = State.DONE

    @property
    def starts(self) -> bool:
        """Whether it starts or imports the framework: minutes on a parallel file system."""
        return self.step == "start" or self.step.endswith(".import")

    def is_late(self, now: float, limit_s: float) -> bool:
        """Return whether it has sent no event for ``limit_s`` seconds, and waits for no rank."""
        return self.state not in (State.READY, State.DONE) and now - self.since > limit_s
