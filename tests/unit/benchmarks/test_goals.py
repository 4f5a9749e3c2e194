"""The verdicts about builder's goals."""

from __future__ import annotations

import pytest

from benchmarks.goals import NOTES, goals, table
from tests.unit.benchmarks.results import repetition, results


def verdicts(made: dict[str, object]) -> dict[str, bool]:
    return {goal.text: goal.met for goal in goals(made)}


def test_all_goals() -> None:
    """Each figure is compared with that of Docker and uv, with or without compiled modules."""
    found = {goal.text: (round(goal.value, 3), goal.met) for goal in goals(results())}
    assert found == {
        "torch, cold: CPU": (round(7 / 64, 3), True),
        "torch, cold, modules compiled: CPU": (round(30 / 160, 3), True),
        "torch, cold, modules compiled: peak memory": (round(2 / 9, 3), True),
        "torch, one package bumped: CPU": (round(1 / 32, 3), True),
        "torch, one package bumped, modules compiled: CPU": (round(1 / 80, 3), True),
        "torch, nothing changed: CPU": (round(0.25 / 0.3, 3), True),
        "torch, fresh machine, modules compiled: CPU": (round(2 / 160, 3), True),
        "torch, fresh machine, modules compiled: received": (round(1 / 66, 3), True),
        "torch: bytes that compiled modules add to the image": (round(100 / 150, 3), True),
        "flat SIF of the CUDA image": (19.0, True),
        "cold pull and start, docker, builder / docker, uv --compile-bytecode": (0.75, True),
        "pull and start after a bump, docker, builder / docker, uv --compile-bytecode": (0.25, False),
    }


@pytest.mark.parametrize(
    ("way", "case", "run", "goal"),
    [
        ("builder, bytecode: none", "cold", repetition(9.0, 15.0, 650 * 10**6), "torch, cold: CPU"),
        ("builder", "unchanged", repetition(0.64), "torch, nothing changed: CPU"),
        ("docker, uv", "bumped", repetition(9.0, 20.0), "torch, one package bumped: CPU"),
        (
            "builder",
            "fresh",
            repetition(1.0, received=10**8),
            "torch, fresh machine, modules compiled: received",
        ),
    ],
)
def test_missed(way: str, case: str, run: dict[str, object], goal: str) -> None:
    """A goal is missed by the figures that it is about."""
    made = results()
    made["workloads"]["torch"]["ways"][way][case] = [run]
    assert [text for text, met in verdicts(made).items() if not met and "start" not in text] == [goal]


def test_small() -> None:
    made = results()
    made["workloads"]["small"] = made["workloads"].pop("torch")
    assert [text for text in verdicts(made) if text.startswith("small")] == [
        "small, cold: CPU",
        "small, cold, modules compiled: CPU",
    ]


def test_part() -> None:
    """A run of one part has the goals of that part only."""
    made = results()
    del made["workloads"]["torch"]
    assert list(verdicts(made)) == ["flat SIF of the CUDA image"]


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ratios are shown as fractions. A note is shown if the goal is not met."""
    after_bump = "pull and start after a bump, docker, builder / docker, uv --compile-bytecode"
    monkeypatch.setitem(NOTES, after_bump, "a reason")
    monkeypatch.setitem(NOTES, "torch, cold: CPU", "not shown")
    lines = table(goals(results()))
    assert "| torch, cold: CPU | 1/9.1 | 1/4.5 | met |" in lines
    assert "| torch, nothing changed: CPU | 0.83 | 1.00 | met |" in lines
    assert "| flat SIF of the CUDA image | 19.00 s | 20.50 s | met |" in lines
    assert f"| {after_bump} | 1/4.0 | 1/5.0 | **not met**: a reason |" in lines
