"""The launcher's decisions, by states and times alone: no process is started."""

from __future__ import annotations

import pytest

from builder.bench.core import Item
from builder.bench.ranks.rank import Rank, State
from builder.bench.ranks.watchdog import GRACE_S, Watchdog

STALL_S = 10.0


class Recorder:
    """Records what the watchdog asks of the launcher."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, Item]] = []
        self.stopped: list[int] = []

    def send(self, rank: Rank, order: Item) -> None:
        self.orders.append((rank.number, order))

    def stop(self, rank: Rank) -> None:
        self.stopped.append(rank.number)
        rank.mark_done()


class Case:
    """Ranks in given states, all of which sent their last event at time 0."""

    def __init__(self, *states: State) -> None:
        self.ranks = [Rank(number, 0.0) for number in range(len(states))]
        for rank, state in zip(self.ranks, states, strict=True):
            rank.state, rank.fit, rank.had_turn = state, True, True
            rank.host = "" if state is State.STARTING else f"n{rank.number}"
            rank.together = state is State.TOGETHER
            rank.step = "allreduce.node" if rank.together else "step"
        self.recorder = Recorder()
        self.watchdog = Watchdog(self.ranks, STALL_S, "n0, port 1", self.recorder)

    def at(self, now: float) -> None:
        self.watchdog.evaluate(now)

    @property
    def turns(self) -> list[int]:
        return [number for number, order in self.recorder.orders if order.get("turn")]

    @property
    def found(self) -> dict[str, str]:
        return {item["id"]: item["seen"] for item in self.watchdog.findings}


@pytest.mark.parametrize("state", [State.WORKING, State.TOGETHER, State.LEFT])
def test_silence_is_a_hang(state: State) -> None:
    case = Case(state, State.DONE)
    case.at(STALL_S)
    assert case.recorder.stopped == []
    case.at(STALL_S + 1)
    assert case.recorder.stopped == [0] and "rank 0 (n0): " in case.found["watchdog"]


def test_ready_ranks_may_be_silent() -> None:
    """A rank that waits for others is not to blame, however long it takes."""
    case = Case(State.READY, State.WORKING)
    case.ranks[1].since = 100.0
    case.at(105.0)
    assert case.recorder.stopped == [] and case.found == {}


def test_absent_rank() -> None:
    case = Case(State.READY, State.STARTING)
    case.at(STALL_S + 1)
    assert "rank 1 of 2 did not connect within 10 s" in case.found["ranks.present"]
    assert case.ranks[1].done and case.recorder.stopped == []
    # in the same evaluation: the other rank goes on alone
    assert case.recorder.orders[0][0] == 0 and case.recorder.orders[0][1]["why"] == "rank 1 cannot take part"


def test_agreement() -> None:
    case = Case(State.READY, State.WORKING)
    case.at(1.0)
    assert case.recorder.orders == []
    case.ranks[1].state = State.READY
    case.at(2.0)
    order = {"go": True, "hosts": ["n0", "n1"]}
    assert case.recorder.orders == [(0, order), (1, order)]
    assert [rank.state for rank in case.ranks] == [State.TOGETHER, State.TOGETHER]
    case.at(3.0)
    assert len(case.recorder.orders) == 2


def test_turns() -> None:
    """The ranks of a node measure alone one after the other, and all begin together afterwards."""
    case = Case(*[State.READY] * 4, State.WORKING)
    hosts = ("a", "a", "b", "b", "b")
    for rank, host in zip(case.ranks, hosts, strict=True):
        rank.host, rank.had_turn = host, False
    case.at(1.0)
    assert case.turns == [0]  # node b has a rank that works
    assert case.ranks[0].state is State.WORKING and case.ranks[0].since == 1.0
    case.at(2.0)
    case.ranks[4].state = State.READY
    case.at(3.0)
    assert case.turns == [0, 2]
    case.ranks[0].receive({"ready": True})
    case.at(4.0)
    case.ranks[2].mark_done()  # dies in its turn
    case.at(5.0)
    assert case.turns == [0, 2, 1, 3]
    for number in (1, 3):
        case.ranks[number].receive({"ready": True})
    case.at(6.0)
    assert case.turns == [0, 2, 1, 3, 4] and case.watchdog.agreed is None
    case.ranks[4].receive({"ready": True})
    case.at(7.0)
    assert case.watchdog.agreed is False and len(case.recorder.orders) == 5 + 4


def test_no_turn_before_all_nodes_are_known() -> None:
    case = Case(State.READY, State.STARTING)
    case.ranks[0].had_turn = False
    case.at(1.0)
    assert case.recorder.orders == []
    case.at(STALL_S + 1)
    assert case.turns == [0]


def test_hang_in_a_turn() -> None:
    """A rank that hangs in its turn is named, and the next one has its turn at once."""
    case = Case(State.READY, State.READY)
    for rank in case.ranks:
        rank.host, rank.had_turn = "n", False
    case.at(1.0)
    case.at(STALL_S + 2)
    assert case.recorder.stopped == [0] and case.turns == [0, 1]
    assert "rank 0 (n)" in case.found["watchdog"]


def test_unfit_rank() -> None:
    """If one rank cannot take part, no rank does."""
    case = Case(State.READY, State.READY)
    case.ranks[1].fit = False
    case.at(1.0)
    assert [order["go"] for _, order in case.recorder.orders] == [False, False]
    assert case.recorder.orders[0][1]["why"] == "rank 1 cannot take part"


def test_single_rank_needs_no_agreement() -> None:
    case = Case(State.READY)
    case.at(1.0)
    assert case.recorder.orders == []


@pytest.mark.parametrize("gone", [State.LEFT, State.DONE])
def test_deserted_rank(gone: State) -> None:
    """A rank in a collective that another one has left by a failure is ended, without a finding."""
    case = Case(State.TOGETHER, gone)
    case.watchdog.agreed = True
    case.ranks[1].measurements.append({"id": "allreduce.node", "status": "fail"})
    for rank in case.ranks:
        rank.since, rank.host = 200.0, "n0"
    case.at(100.0)
    case.at(100.0 + GRACE_S)
    assert case.recorder.stopped == []
    case.at(100.5 + GRACE_S)
    assert case.recorder.stopped == [0] and case.found == {}


def test_deserted_after_an_earlier_failure() -> None:
    """A rank that failed in a collective skips the next one. Another one may have passed the first."""
    case = Case(State.TOGETHER, State.LEFT)
    case.watchdog.agreed = True
    case.ranks[0].step = "allgather.node"
    case.ranks[1].measurements.append({"id": "allreduce.node", "status": "fail"})
    for rank in case.ranks:
        rank.since, rank.host = 200.0, "n0"
    case.at(100.0)
    case.at(100.5 + GRACE_S)
    assert case.recorder.stopped == [0] and case.found == {}


def test_deserted_beside_a_failure_on_another_node() -> None:
    """A collective of a node needs its own ranks only, so another node's failure explains nothing."""
    case = Case(State.TOGETHER, State.LEFT, State.LEFT)
    case.watchdog.agreed = True
    case.ranks[2].measurements.append({"id": "allreduce.node", "status": "fail"})
    for rank, host in zip(case.ranks, ("n0", "n0", "n1"), strict=True):
        rank.since, rank.host = 200.0, host
    case.at(100.0)
    case.at(100.5 + GRACE_S)
    assert case.recorder.stopped == [0] and "rank 0 (n0)" in case.found["watchdog"]


@pytest.mark.parametrize("gone", [State.LEFT, State.DONE])
def test_deserted_by_a_rank_that_passed(gone: State) -> None:
    """A rank that hangs in a collective that another one has finished is reported: nobody else does it."""
    case = Case(State.TOGETHER, gone, State.TOGETHER)
    case.watchdog.agreed = True
    case.ranks[1].measurements.append({"id": "allreduce.node", "status": "pass"})
    for rank, host in zip(case.ranks, ("n0", "n0", "n1"), strict=True):
        rank.since, rank.host = 200.0, host
    case.at(100.0)
    case.at(101.0 + GRACE_S)
    assert case.recorder.stopped == [0]
    found = case.found["watchdog"]
    assert "rank 0 (n0): allreduce.node did not end" in found and "rank 1" not in found
    assert "rank 2" not in found, "the ranks of another, slower node do not wait for it"
    assert "FI_MR_CACHE_MONITOR" in case.watchdog.findings[0]["advice"]  # of several nodes only the first


def test_all_together_blame_each_other() -> None:
    case = Case(State.TOGETHER, State.TOGETHER)
    case.at(STALL_S + 1)
    assert case.recorder.stopped == [0, 1]
    assert "rank 0 (n0)" in case.found["watchdog"] and "rank 1 (n1)" in case.found["watchdog"]


def test_blame_after_a_death() -> None:
    """Ranks that wait for a rank whose death is reported are not blamed."""
    case = Case(State.TOGETHER, State.TOGETHER, State.TOGETHER)
    case.watchdog.mark_lost(case.ranks[2], "the process was ended by SIGKILL", "advice")
    case.at(STALL_S + 1)
    assert case.recorder.stopped == [0, 1] and set(case.found) == {"process"}


def test_time_limit_blames_those_that_others_wait_for() -> None:
    case = Case(State.READY, State.WORKING, State.TOGETHER)
    case.watchdog.end_hung(case.ranks, 60)
    assert case.recorder.stopped == [0, 1, 2]
    assert "rank 1 (n1): step did not end within 60 s" in case.found["watchdog"]
    assert "rank 0" not in case.found["watchdog"] and "rank 2" not in case.found["watchdog"]


def test_lost_twice() -> None:
    """A rank that is lost is reported once."""
    case = Case(State.WORKING, State.WORKING)
    case.watchdog.mark_lost(case.ranks[0], "first", "advice")
    case.watchdog.mark_lost(case.ranks[0], "second", "advice")
    case.watchdog.mark_lost(case.ranks[1], "other", "advice")
    assert case.found == {"process": "rank 0 (n0): first; rank 1 (n1): other"}


def test_states_of_a_rank() -> None:
    """The events of a rank move it from state to state."""
    rank = Rank(0, 0.0)
    assert rank.state is State.STARTING
    rank.connect("n0")
    states = []
    for event in (
        {"begin": "matmul.fp32"},
        {"ready": True},
        {"begin": "allreduce.node", "together": True},
        {"begin": "allreduce.network", "together": True},
        {"begin": "gpu.clocks"},
        {"end": True, "after": {"0": {"clock_mhz": 1.0}}},
        {"begin": "too late"},
    ):
        rank.receive(event)
        states.append(rank.state)
    assert states == [
        State.WORKING, State.READY, State.TOGETHER, State.TOGETHER, State.LEFT, State.DONE, State.DONE,
    ]  # fmt: skip
    assert rank.step == "gpu.clocks" and rank.after == {"0": {"clock_mhz": 1.0}}


def test_late_hello() -> None:
    """A rank that was declared absent stays DONE when it connects."""
    rank = Rank(0, 0.0)
    rank.mark_done()
    rank.connect("n0")
    assert rank.done
