"""Damaged reports: they are rejected with a message, or can be graded, compared and drawn."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from builder.deliver.smoke.changes import compare
from builder.deliver.smoke.grade import grade
from builder.deliver.smoke.page import render, view
from builder.deliver.smoke.reference import references
from builder.deliver.smoke.reports import ReportError, StoredReport, parse_report
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.share import share, to_bytes
from builder.deliver.smoke.table import render as table
from builder.deliver.smoke.table import render_changes
from builder.lock.config.site import Gpu
from tests.support.reports import A100_40, a100, cpu, ranked, report, rich

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    7,
    "",
    "x",
    "9" * 400,
    [],
    [1],
    {},
    {"a": 1},
    [[]],
    [None],
    "\ud800",
    "2026-99-99T99:99:99Z",
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(p for key, part in items for p in places(part, (*at, key)))]


def damaged(value: Any, at: tuple[Any, ...], junk: Any, drop: bool) -> Any:
    """A copy with one part replaced, or left out."""
    if not at:
        return junk
    out = copy.deepcopy(value)
    inner = out
    for key in at[:-1]:
        inner = inner[key]
    if drop and isinstance(inner, dict):
        del inner[at[-1]]
    else:
        inner[at[-1]] = copy.deepcopy(junk)
    return out


def whole() -> list[dict[str, Any]]:
    """Reports of all kinds, with few samples."""
    devices = [
        {**A100_40, "rank": i, "after": {"throttled": ["heat"], "clock_mhz": 900, "temperature_c": 80}}
        for i in range(2)
    ]
    made = [
        grade(
            a100(packages={"torch": "2.13.0"}, tag="26.11"),
            references(),
            Gpu(vendor="nvidia", architectures=("sm_80",)),
        ),
        report([ranked("matmul.bf16", (248e3, 150e3))], devices=devices, ranks=2),
        cpu(),
        rich(),
    ]
    for value in made:
        for m in value["measurements"]:
            for key in [k for k in m if k.startswith("samples_")]:
                m[key] = m[key][:1]
    return made


@pytest.mark.parametrize("number", range(4))
def test_damage(number: int) -> None:
    """A damaged report never ends in a traceback."""
    rng = random.Random(number)
    value = whole()[number]
    good = StoredReport(whole()[number], "good")
    spots = places(value)
    read = 0
    for at in rng.sample(spots, min(len(spots), 100)):
        text = json.dumps(damaged(value, at, rng.choice(JUNK), rng.random() < 0.2))
        try:
            stored = parse_report(text, "x.json")
        except ReportError as e:
            assert e.message.startswith("x.json: ") and "\n" not in e.message
            continue
        read += 1
        out = grade(
            {k: v for k, v in stored.report.items() if k != "grade"},
            references(),
            Gpu(vendor="nvidia", architectures=("sm_80",)),
        )
        json.dumps(out["grade"], allow_nan=False)
        json.dumps(compare([stored], [good]).to_json(), allow_nan=False)
        compare([good], [stored, good, stored])
        if stored.report["measurements"]:
            assert to_bytes(share([stored.report])).isascii()
        page = render([view("x", [good, stored], ())], {}, made="now", histories={})
        assert page.encode("utf-8", "surrogatepass")
        render_changes(compare([good], [stored]), "x")
        table(SmokeReport(stored.report["verdict"], stored.report, "docker", "sha256:" + "0" * 64, 1.0))
    assert read > 25
