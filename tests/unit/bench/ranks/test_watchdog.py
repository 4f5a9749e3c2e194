"""The launcher's decisions, by states and times alone: no process is started."""

from __future__ import annotations

import pytest

from builder.bench.core import Item
from builder.bench.options import parse
from builder.bench.ranks.rank import Rank, State
from builder.bench.ranks.watchdog import Watchdog

STALL_S = 10.0
OPTIONS = parse(["--stall", "10", "--start-stall", "10"])


class Recorded(Rank):
    """A rank without a process: it records what is asked of it."""

    def __init__(self, number: int, orders: list[tuple[int, Item]], stopped: list[int]) -> None:
        super().__init__(number, 0.0)
        self.orders, self.stopped = orders, stopped

    def send(self, order: Item) -> None:
        self.orders.append((self.number, order))

    def stop(self) -> None:
        self.stopped.append(self.number)
        self.mark_done()


class Case:
    """Ranks in given states, all of which sent their last event at time 0."""

    def __init__(self, *states: State) -> None:
        self.orders: list[tuple[int, Item]] = []
        self.stopped: list[int] = []
        self.ranks = [Recorded(number, self.orders, self.stopped) for number in range(len(states))]
        for rank, state in zip(self.ranks, states, strict=True):
            rank.state, rank.fit, rank.had_turn = state, True, True
            rank.host = "" if state is State.STARTING else f"n{rank.number}"
            rank.step = "allreduce.node" if state is State.TOGETHER else "step"
        self.watchdog = Watchdog(list[Rank](self.ranks), OPTIONS, "n0, port 1")

    def at(self, now: float) -> None:
        self.watchdog.evaluate(now)

    @property
    def turns(self) -> list[int]:
        return [number for number, order in self.orders if order.get("turn")]

    @property
    def found(self) -> dict[str, str]:
        return {item["id"]: item["seen"] for item in self.watchdog.findings}


@pytest.mark.parametrize("state", [State.WORKING, State.TOGETHER])
def test_silence_is_a_hang(state: State) -> None:
    case = Case(state, State.DONE)
    case.at(STALL_S)
    assert case.stopped == []
    case.at(STALL_S + 1)
    assert case.stopped == [0] and "rank 0 (n0): " in case.found["watchdog"]


def test_cold_imports_take_longer() -> None:
    """Imports from a parallel file system have a limit of their own."""
    case = Case(State.WORKING, State.WORKING)
    case.watchdog.options = parse(["--stall", "10"])
    case.ranks[0].step = "torch.import"
    case.at(899.0)
    assert case.stopped == [1]
    case.at(901.0)
    assert case.stopped == [1, 0] and "did not end within 900 s" in case.found["watchdog"]


def test_absent_rank() -> None:
    case = Case(State.READY, State.STARTING)
    case.at(STALL_S + 1)
    assert case.found == {"watchdog": "rank 1 (never connected): step did not end within 10 s"}
    assert "can reach n0, port 1" in case.watchdog.findings[0]["advice"] and case.ranks[1].done
    # in the same evaluation: the other rank goes on alone
    assert case.orders[0][0] == 0 and case.orders[0][1]["why"] == "rank 1 cannot take part"


def test_agreement() -> None:
    case = Case(State.READY, State.WORKING)
    case.at(1.0)
    assert case.orders == []
    case.ranks[1].state = State.READY
    case.at(2.0)
    order = {"go": True, "hosts": ["n0", "n1"]}
    assert case.orders == [(0, order), (1, order)]
    assert [rank.state for rank in case.ranks] == [State.TOGETHER, State.TOGETHER]
    case.at(3.0)
    assert len(case.orders) == 2


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
    assert case.watchdog.agreed is False and len(case.orders) == 5 + 4


def test_time_limit_blames_those_that_others_wait_for() -> None:
    case = Case(State.READY, State.WORKING, State.TOGETHER)
    case.watchdog.end_hung(case.ranks, 60)
    assert case.stopped == [0, 1, 2]
    assert "rank 1 (n1): the test did not end within 60 s; it was in step" in case.found["watchdog"]
    assert "rank 0" not in case.found["watchdog"] and "rank 2" not in case.found["watchdog"]


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
        {"end": True, "after": {"clock_mhz": 1.0}},
        {"begin": "too late"},
    ):
        rank.receive(event)
        states.append(rank.state)
    assert states == [
        State.WORKING, State.READY, State.TOGETHER, State.TOGETHER, State.WORKING, State.DONE, State.DONE,
    ]  # fmt: skip
    assert rank.step == "gpu.clocks" and rank.after == {"clock_mhz": 1.0}


def test_unfit_rank() -> None:
    """If one rank cannot take part, no rank does."""
    case = Case(State.READY, State.READY)
    case.ranks[1].fit = False
    case.at(1.0)
    assert [order["go"] for _, order in case.orders] == [False, False]
    assert case.orders[0][1]["why"] == "rank 1 cannot take part"
