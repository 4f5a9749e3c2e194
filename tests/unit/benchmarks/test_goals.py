"""The verdicts about builder's goals."""

from __future__ import annotations

import pytest

from benchmarks.goals import goals, table
from tests.unit.benchmarks.results import repetition, results


def verdicts(made: dict[str, object]) -> dict[str, bool]:
    return {goal.text: goal.met for goal in goals(made)}


def test_all_goals() -> None:
    found = verdicts(results())
    assert found == {
        "cold build and push: CPU / the machine's limit": True,
        "nothing changed: build and push": True,
        "cold build and push with bytecode / docker with pip: time": True,
        "cold build and push with bytecode / docker with pip: CPU": True,
        "bytes that bytecode adds to the image / what it adds to docker's": True,
        "flat SIF of the CUDA image": True,
        "cold pull and start, docker, builder / docker, pip": True,
        "pull and start after a bump, docker, builder / docker, pip": False,
    }


@pytest.mark.parametrize(
    ("path", "runs", "goal"),
    [
        (
            ("builder, bytecode: none", "cold"),
            [repetition(9.0, 8.2)],
            "cold build and push: CPU / the machine's limit",
        ),
        (("builder", "unchanged"), [repetition(0.64)], "nothing changed: build and push"),
        (
            ("docker, pip", "cold"),
            [repetition(100.0, 190.0)],
            "cold build and push with bytecode / docker with pip: time",
        ),
    ],
)
def test_missed(path: tuple[str, str], runs: list[dict[str, object]], goal: str) -> None:
    """A goal is missed by the figures that it is about."""
    made = results()
    made["workloads"]["torch"]["ways"][path[0]][path[1]] = runs
    assert verdicts(made)[goal] is False


def test_part() -> None:
    """A run of one part has the goals of that part only."""
    made = results()
    del made["workloads"]["torch"]
    assert list(verdicts(made)) == ["flat SIF of the CUDA image"]


def test_table() -> None:
    lines = table(goals(results()))
    assert "| nothing changed: build and push | 0.25 s | 0.30 s | met |" in lines
    after_bump = "pull and start after a bump, docker, builder / docker, pip"
    assert f"| {after_bump} | 0.25 | 0.20 | **not met** |" in lines
