"""The launcher's decisions: which ranks are late, whether all can begin together, and which wait in vain.

No process and no connection is touched here: the launcher applies the decisions (``Actions``).
"""

from __future__ import annotations

from typing import Protocol

from ..core import Item, finding
from .child import process_state
from .rank import Rank, State

#: Seconds that a rank may stay in a collective that another rank has left: it can no longer end.
GRACE_S = 15.0

_NETWORK_ADVICE = (
    "the network, a GPU or its driver hangs, or a firewall is between the nodes: "
    "set NCCL_SOCKET_IFNAME to the fast interface; NCCL_DEBUG=INFO prints more"
)
#: RCCL of ROCm 7.0 on Slingshot: lumi-ai-factory/laifs-container-recipes, issues 44 and 30.
_SECOND_GROUP_ADVICE = (
    "a second process group hangs; jobs with one group (plain DDP) are not affected: "
    "unset NCCL_NET_GDR_LEVEL; on Slingshot set FI_MR_CACHE_MONITOR=userfaultfd, or use another RCCL"
)


class Actions(Protocol):
    """What the launcher does for the watchdog."""

    def send(self, rank: Rank, order: Item) -> None:
        """Sends an order to a rank."""

    def stop(self, rank: Rank) -> None:
        """Kills a rank, which is DONE then."""


class Watchdog:
    """Evaluates the states of all ranks. ``findings`` collects what is wrong with them."""

    def __init__(self, ranks: list[Rank], stall_s: float, address: str, actions: Actions) -> None:
        """``address`` is that of the launcher, for messages."""
        self.ranks = ranks
        self.stall_s = stall_s
        self.address = address
        self.actions = actions
        self.findings: list[Item] = []
        #: Whether all ranks run the collectives; None: not decided yet.
        self.agreed: bool | None = None
        #: Since when a rank waits in a collective that another one has left.
        self.deserted_at: float | None = None

    def evaluate(self, now: float) -> None:
        """Applies all rules once; the launcher calls this at least twice a second."""
        absent = [r for r in self.ranks if r.state is State.STARTING and r.silent(now, self.stall_s)]
        if absent:
            self._report_absent(absent)

        late = [r for r in self.ranks if r.silent(now, self.stall_s)]
        if late:
            self.end_hung(late, self.stall_s)

        if self.agreed is None and len(self.ranks) > 1:
            self._give_turns(now)
            self._agree(now)
        if self.agreed:
            self._end_deserted(now)

    def _report_absent(self, absent: list[Rank]) -> None:
        """Ranks whose unit has never connected to the launcher."""
        numbers = ", ".join(str(rank.number) for rank in absent)
        seen = f"rank {numbers} of {len(self.ranks)} did not connect within {self.stall_s:g} s"
        advice = f"check that it was started, and that its node can reach {self.address}"
        self.add("ranks.present", "fail", seen, advice)
        for rank in absent:
            rank.mark_done()

    def _give_turns(self, now: float) -> None:
        """Lets one rank of each node whose ranks are all READY measure alone."""
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
                self.actions.send(waiting[0], {"turn": True})

    def _agree(self, now: float) -> None:
        """Lets all ranks begin together, as soon as each of them is READY after its turn, or DONE.

        If one of them cannot take part, the others skip the collectives.
        """
        if not all(rank.done or (rank.state is State.READY and rank.had_turn) for rank in self.ranks):
            return
        unable = [rank for rank in self.ranks if rank.done or not rank.fit]
        self.agreed = not unable
        order: Item = {"go": self.agreed, "hosts": [rank.host for rank in self.ranks]}
        if unable:
            order["why"] = f"rank {', '.join(str(rank.number) for rank in unable)} cannot take part"
        for rank in self.ranks:
            if not rank.done:
                rank.state = State.TOGETHER
                rank.since = now
                self.actions.send(rank, order)

    def _end_deserted(self, now: float) -> None:
        """Ends ranks in a collective that another rank has left: by an error, or because it died."""
        gone = [rank for rank in self.ranks if rank.state in (State.LEFT, State.DONE)]
        waiting = [rank for rank in self.ranks if rank.in_collective and any(map(rank.waits_for, gone))]
        if not waiting:
            self.deserted_at = None
            return
        if self.deserted_at is None:
            self.deserted_at = now
        if now - self.deserted_at > GRACE_S:
            # The rank that left them usually has a finding. If it passed, nothing else names the hang.
            unexplained = [rank for rank in waiting if not self._has_reason(rank)]
            for rank in unexplained:
                self._report_hung(rank, GRACE_S, " after another rank had left it")
            for rank in waiting:
                self.actions.stop(rank)

    def _has_reason(self, waiting: Rank) -> bool:
        """Whether the report says why a rank waits in vain: another one died, or failed in a collective.

        That may be an earlier collective, which ended well on the rank that waits.
        """
        others = [rank for rank in self.ranks if waiting.waits_for(rank)]
        return bool(self.findings) or any(rank.failed_together for rank in others)

    def end_hung(self, late: list[Rank], seconds: float) -> None:
        """Ends ranks that are late, and reports those of them that caused the delay."""
        for rank in self._causing(late):
            self._report_hung(rank, seconds)
        for rank in late:
            self.actions.stop(rank)

    def _causing(self, late: list[Rank]) -> list[Rank]:
        """The ranks that others wait for; all of them if they wait for each other."""
        waited_for = [rank for rank in late if rank.state not in (State.READY, State.TOGETHER)]
        if waited_for:
            return waited_for
        together = all(rank.state is State.TOGETHER for rank in late)
        missing_reported = any(item["id"] in ("process", "ranks.present") for item in self.findings)
        return [] if together and missing_reported else late

    def _report_hung(self, rank: Rank, seconds: float, since: str = "") -> None:
        who = ""
        if len(self.ranks) > 1:
            who = f"rank {rank.number} ({rank.host or 'never connected'}){process_state(rank.pid)}: "
        advice = "a GPU, driver or file system hangs; if the machine is only slow: --timeout, --stall"
        if rank.state is State.TOGETHER:
            advice = _NETWORK_ADVICE
        if rank.in_collective and rank.step.endswith(".node") and len({r.host for r in self.ranks}) > 1:
            advice = _SECOND_GROUP_ADVICE
        self.add("watchdog", "fail", f"{who}{rank.step} did not end within {seconds:g} s{since}", advice)

    def mark_lost(self, rank: Rank, seen: str, advice: str) -> None:
        """Handles a rank whose process or connection ended too early."""
        if rank.done:
            return
        rank.mark_done()
        who = f"rank {rank.number} ({rank.host}): " if len(self.ranks) > 1 else ""
        self.add("process", "fail", who + seen, advice)

    def add(self, name: str, status: str, seen: str, advice: str) -> None:
        """Adds a finding. An id appears once in a report, so a second one extends the first."""
        for item in self.findings:
            if item["id"] == name:
                item["seen"] += "; " + seen
                return
        self.findings.append(finding(name, status, seen, advice))
