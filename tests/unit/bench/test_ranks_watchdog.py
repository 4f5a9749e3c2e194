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
            rank.state, rank.fit = state, True
            rank.host = "" if state is State.STARTING else f"n{rank.number}"
            rank.step = "allreduce.node" if state is State.TOGETHER else "step"
        self.recorder = Recorder()
        self.watchdog = Watchdog(self.ranks, STALL_S, "n0, port 1", self.recorder)

    def at(self, now: float) -> None:
        self.watchdog.evaluate(now)

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
    """A rank in a collective that another one has left is ended, without a finding of its own."""
    case = Case(State.TOGETHER, gone)
    case.watchdog.agreed = True
    for rank in case.ranks:
        rank.since = 200.0
    case.at(100.0)
    case.at(100.0 + GRACE_S)
    assert case.recorder.stopped == []
    case.at(100.5 + GRACE_S)
    assert case.recorder.stopped == [0] and case.found == {}


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
