"""A rank, as the launcher knows it."""

from __future__ import annotations

import enum
import time

from ..core import Item
from ..measurements.exchanges import EXCHANGES


class State(enum.Enum):
    """The progress of a rank; the package's docstring explains the transitions."""

    STARTING = "starting"
    WORKING = "working"
    READY = "ready"
    TOGETHER = "together"
    LEFT = "left"
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
        #: Its process, if this process started it.
        self.pid: int | None = None
        #: The id of the probe or measurement that it runs.
        self.step = "start"
        #: Whether all ranks run this step together.
        self.together = False
        #: When its last event came (time.monotonic).
        self.since = now

        self.facts: Item = {}
        #: State of each of its GPUs under load, by the GPU's number.
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
        """Makes it DONE: later events are ignored."""
        self.state = State.DONE

    def connect(self, host: str) -> None:
        """Records that its unit has started it on a host."""
        self.host = host
        self.since = time.monotonic()
        if self.state is State.STARTING:
            self.state = State.WORKING

    def receive(self, event: Item) -> None:
        """Applies one of its events (see ``examine.py``)."""
        if self.done:
            return
        self.since = time.monotonic()
        if "begin" in event:
            self._begin(str(event["begin"]), together=bool(event.get("together")))
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

    def _begin(self, step: str, together: bool) -> None:
        self.step = step
        self.together = together
        if together:
            self.state = State.TOGETHER
        elif self.state is State.TOGETHER:
            self.state = State.LEFT

    def silent(self, now: float, limit_s: float) -> bool:
        """Whether it has sent no event for ``limit_s`` seconds, although it does not wait for other ranks."""
        return self.state not in (State.READY, State.DONE) and now - self.since > limit_s

    @property
    def in_collective(self) -> bool:
        """Whether it waits for other ranks in a collective."""
        return self.state is State.TOGETHER and self.together

    def waits_for(self, other: Rank) -> bool:
        """Whether its collective needs another rank; those of a node need its own ranks only."""
        return not self.step.endswith(".node") or other.host == self.host

    @property
    def failed_together(self) -> bool:
        """Whether it has reported the failure of a collective. Then it skips all later ones."""
        failed = [item["id"] for item in self.measurements if item["status"] == "fail"]
        return any(name.startswith(tuple(EXCHANGES)) for name in failed)
