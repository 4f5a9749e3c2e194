"""The launcher's decisions: which ranks are late, and whether all can begin together."""

from __future__ import annotations

import argparse

from ..core import Item, finding
from .child import process_state
from .rank import Rank, State

_NETWORK_ADVICE = (
    "the network, a GPU or its driver hangs, or a firewall is between the nodes: "
    "set NCCL_SOCKET_IFNAME to the fast interface; NCCL_DEBUG=INFO prints more"
)


class Watchdog:
    """Evaluates the states of all ranks. ``findings`` collects what is wrong with them."""

    def __init__(self, ranks: list[Rank], options: argparse.Namespace, address: str) -> None:
        """``address`` is that of the launcher, for messages."""
        self.ranks = ranks
        self.options = options
        self.address = address
        self.findings: list[Item] = []
        #: Whether all ranks run the collectives; None: not decided yet.
        self.agreed: bool | None = None

    def evaluate(self, now: float) -> None:
        """Apply all rules once; the launcher calls this at least twice a second."""
        late = [rank for rank in self.ranks if rank.is_late(now, self._limit_s(rank))]
        if late:
            self.end_hung(late)

        if self.agreed is None and len(self.ranks) > 1:
            self._give_turns(now)
            self._agree(now)

    def _limit_s(self, rank: Rank) -> float:
        """Return the limit without an event. Imports from a parallel file system take minutes."""
        imports = rank.starts or rank.step == "imports"
        return float(self.options.start_stall if imports else self.options.stall)

    def _give_turns(self, now: float) -> None:
        """Let one rank of each node whose ranks are all READY measure alone."""
        if any(rank.state is State.STARTING for rank in self.ranks):
            return  # its node is not known yet
        nodes: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            if not rank.done:
                nodes.setdefault(rank.host, []).append(rank)
        for ranks in nodes.values():
            waiting = [rank for rank in ranks if not rank.had_turn]
            if waiting and all(rank.state is State.READY for rank in ranks):
                waiting[0].had_turn = True
                waiting[0].state = State.WORKING
                waiting[0].since = now
                waiting[0].send({"turn": True})

    def _agree(self, now: float) -> None:
        """Let all ranks begin together, as soon as each of them is READY after its turn, or DONE.

        If one of them cannot take part, the others skip the collectives.
        """
        waiting = [rank for rank in self.ranks if not rank.done]
        if not all(rank.state is State.READY and rank.had_turn for rank in waiting):
            return
        unable = [str(rank.number) for rank in self.ranks if rank.done or not rank.fit]
        self.agreed = not unable
        order: Item = {"go": self.agreed, "hosts": [rank.host for rank in self.ranks]}
        if unable:
            order["why"] = f"rank {', '.join(unable)} cannot take part"
        for rank in waiting:
            rank.state = State.TOGETHER
            rank.since = now
            rank.send(order)

    def end_hung(self, late: list[Rank], seconds: float | None = None) -> None:
        """End ranks that are late, and report those of them that caused the delay.

        Args:
            late: the ranks.
            seconds: the time limit of the whole test, if that is exceeded; None: that of a step is.
        """
        for rank in self._causing(late):
            self._report_hung(rank, seconds)
        for rank in late:
            rank.stop()

    def _causing(self, late: list[Rank]) -> list[Rank]:
        """Return the ranks that others wait for; all of them if they wait for each other."""
        waited_for = [rank for rank in late if rank.state not in (State.READY, State.TOGETHER)]
        if waited_for:
            return waited_for
        together = all(rank.state is State.TOGETHER for rank in late)
        missing_reported = any(item["id"] == "process" for item in self.findings)
        return [] if together and missing_reported else late

    def _report_hung(self, rank: Rank, seconds: float | None) -> None:
        who = ""
        if len(self.ranks) > 1:
            host = rank.host or "never connected"
            who = f"rank {rank.number} ({host}){process_state(rank.pid)}: "
        seen = f"{rank.step} did not end within {self._limit_s(rank):g} s"
        advice = "a GPU, driver or file system hangs; if the machine is only slow: --stall"
        if seconds is not None:
            seen = f"the test did not end within {seconds:g} s; it was in {rank.step}"
            advice = "allow more time: --timeout; if it stays in this step, a GPU or driver hangs"
        if rank.state is State.STARTING:
            advice = f"check that it was started, and that its node can reach {self.address}"
        if rank.state is State.TOGETHER:
            advice = _NETWORK_ADVICE
        self.add("watchdog", "fail", f"{who}{seen}", advice)

    def mark_lost(self, rank: Rank, seen: str, advice: str) -> None:
        """Handle a rank whose process or connection ended too early."""
        if rank.done:
            return
        rank.mark_done()
        who = f"rank {rank.number} ({rank.host}): " if len(self.ranks) > 1 else ""
        self.add("process", "fail", f"{who}{seen} in {rank.step}", advice)

    def add(self, name: str, status: str, seen: str, advice: str) -> None:
        """Add a finding. An id appears once in a report, so a second one extends the first."""
        for item in self.findings:
            if item["id"] == name:
                item["seen"] += "; " + seen
                return
        self.findings.append(finding(name, status, seen, advice))
