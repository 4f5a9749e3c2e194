"""The statistic of ``builder smoke --ab``, on simulated rounds with drift and noise. All seeds are fixed."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from builder.deliver.smoke.ab import ROUND, Ab, compare_rounds
from tests.support.reports import A100_40, ranked

#: Figures of one GPU: the value, the run-to-run standard deviation in percent (as published).
FIGURES = {
    "matmul.fp32": (18_200.0, 0.8),
    "matmul.tf32": (121_000.0, 0.8),
    "matmul.fp16": (251_000.0, 0.8),
    "matmul.bf16": (248_000.0, 0.8),
    "memory.copy": (1_370.0, 0.4),
    "memory.triad": (1_390.0, 0.4),
    "transfer.h2d_pinned": (25.1, 0.8),
    "transfer.d2h_pinned": (25.0, 0.8),
    "other": (9.0, 8.0),
    "conv.training": (90_000.0, 1.1),
    "attention": (120_000.0, 1.1),
}


def simulated(
    seed: int,
    *,
    rounds: int = 3,
    drift: float = 0.0,
    scale: float = 1.0,
    new: dict[str, float] | None = None,
    order: tuple[str, ...] = ROUND,
) -> list[list[dict[str, Any]]]:
    """The reports of some rounds.

    ``drift`` is the relative change of the machine's speed over the whole job, ``scale`` multiplies the
    noise, ``new`` the speed of the new image. The figures have no noise of their own: each run has.
    """
    rng = random.Random(seed)
    out = []
    for number in range(rounds):
        runs = []
        for position, side in enumerate(order):
            speed = 1 + drift * (number * len(order) + position) / (rounds * len(order) - 1)
            figures = []
            for name, (value, sd) in FIGURES.items():
                factor = speed * math.exp(rng.gauss(0, scale * sd / 100))
                factor *= (new or {}).get(name, 1.0) if side == "new" else 1.0
                item = {"id": name, "status": "pass", "device": "cuda:0", "repeats": 1}
                figures.append({**item, "median_gflop_per_s": value * factor})
            devices = [{**A100_40, "uuid": "GPU-1"}]
            runs.append(
                {"verdict": "pass", "facts": {"devices": devices}, "probes": [], "measurements": figures}
            )
        out.append(runs)
    return out


def verdicts(number: int, **options: Any) -> list[Ab]:
    return [compare_rounds(simulated(seed, **options)) for seed in range(number)]


@pytest.mark.parametrize("drift", [0.0, -0.05, 0.05])
def test_no_false_alarm_under_drift(drift: float) -> None:
    """The same image twice: 0.5 % of comparisons may say slower, so 6 of 150 are more than five sigma."""
    slower = [found for found in verdicts(150, drift=drift) if found.verdict != "same"]
    assert len(slower) < 6, [[f.id for f in found.slower] for found in slower]


def test_order_matters() -> None:
    """Two old runs before two new ones: a drift of 20 % would look like a change of most figures."""
    blocks = simulated(1, drift=-0.20, order=("old", "old", "new", "new"), scale=0.2)
    assert len(compare_rounds([[runs[i] for i in (0, 2, 3, 1)] for runs in blocks]).slower) >= 6
    assert compare_rounds(simulated(1, drift=-0.20, scale=0.2)).verdict == "same"


@pytest.mark.parametrize(("slowdown", "least"), [(0.03, 65), (0.05, 97)])
def test_slower_is_found(slowdown: float, least: int) -> None:
    """3 % slower in one product is found in 92 of 100 comparisons, 5 % always; also while clocks fall."""
    found = verdicts(100, drift=-0.05, new={"matmul.bf16": 1 - slowdown})
    caught = [one for one in found if "matmul.bf16" in [f.id for f in one.slower]]
    assert len(caught) >= least


def test_host_figures_do_not_decide() -> None:
    found = compare_rounds(simulated(3, new={"other": 0.3}))
    outcomes = {figure.id: figure.outcome for figure in found.figures}
    assert found.verdict == "same" and outcomes["other"] == "shown"


def test_unsteady_machine() -> None:
    """Runs that differ four times as much as usual allow no verdict, in either direction."""
    found = verdicts(40, scale=5, new={"matmul.bf16": 0.95})
    assert sum(1 for one in found if one.verdict == "unsteady") >= 36
    assert any("not steady" in note for note in found[0].notes)
    slower = [one for one in verdicts(100, scale=2) if one.verdict == "slower"]
    assert len(slower) < 19, "6 % at twice the noise: the limits grow with it"


def test_rounds_must_agree() -> None:
    """Half as fast in one round and a little faster in the other is no change of the image."""
    rounds = simulated(5, scale=0.01)
    for position, factor in ((1, 0.5), (2, 0.5)):
        _scale(rounds[0][position], "matmul.bf16", factor)
    for position, factor in ((1, 1.05), (2, 1.05)):
        _scale(rounds[1][position], "matmul.bf16", factor)
        _scale(rounds[2][position], "matmul.bf16", 0.5 if position == 1 else 0.5)
    bf16 = next(figure for figure in compare_rounds(rounds).figures if figure.id == "matmul.bf16")
    assert bf16.outcome == "same" and bf16.ratio < 0.8


def _scale(made: dict[str, Any], name: str, factor: float) -> None:
    for measurement in made["measurements"]:
        if measurement["id"] == name:
            measurement["median_gflop_per_s"] *= factor


def _other_gpu(run: dict[str, Any]) -> None:
    run["facts"]["devices"][0]["uuid"] = "GPU-2"


def _busy(run: dict[str, Any]) -> None:
    run["probes"].append({"id": "gpu.idle", "status": "warn", "seen": "pid 1 uses it", "advice": ""})


def _hot(run: dict[str, Any]) -> None:
    run["measurements"][0]["throttled"] = ["heat", "power cap"]


def _aborted(run: dict[str, Any]) -> None:
    run["verdict"] = "error"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_gpu, "different GPUs"),
        (_busy, "other processes"),
        (_hot, "only the new image was throttled (heat)"),
        (_aborted, "without a report"),
    ],
)
def test_spoilt_round(spoil: Any, words: str) -> None:
    """A spoilt round is left out and named; fewer than three rounds are no verdict."""
    rounds = simulated(1, rounds=4)
    spoil(rounds[1][2])
    found = compare_rounds(rounds)
    assert found.verdict == "same" and found.rounds == 3
    assert any("round 2 is left out" in note and words in note for note in found.notes), found.notes
    found = compare_rounds(rounds[:3])
    assert found.verdict == "unsteady" and any("2 of 3 rounds" in note for note in found.notes)


def test_throttled_alike_counts() -> None:
    """Both images at the power cap, or both hot: that is the machine, and the round counts."""
    rounds = simulated(1)
    for run in rounds[0]:
        _hot(run)
    assert compare_rounds(rounds).rounds == 3
    rounds[1][1]["measurements"][0]["throttled"] = ["power cap"]
    assert compare_rounds(rounds).rounds == 3


def test_figures_that_not_all_runs_have() -> None:
    """A figure that the new image leaves out, or measures at another size, is named: it hides nothing."""
    rounds = simulated(1)
    for reports in rounds:
        for report, side in zip(reports, ROUND, strict=True):
            if side == "new":
                report["measurements"] = [m for m in report["measurements"] if m["id"] != "attention"]
            for measurement in report["measurements"]:
                if measurement["id"] == "matmul.bf16":
                    measurement["size"] = 2048 if side == "new" else 8192
                if measurement["id"] == "matmul.fp16":
                    measurement["size"] = 8192 if side == "new" else 16384
    result = compare_rounds(rounds)
    assert {"attention", "matmul.bf16"}.isdisjoint(figure.id for figure in result.figures)
    assert "matmul.fp16" in {figure.id for figure in result.figures}
    (note,) = [note for note in result.notes if note.startswith("not compared")]
    assert note.endswith(": attention, matmul.bf16")


def test_size_of_each_rank() -> None:
    """A rank whose size differs between the images is not compared, even if the whole one does not."""
    rounds = simulated(1)
    for reports in rounds:
        for report, side in zip(reports, ROUND, strict=True):
            whole = ranked("matmul.fp8", (500e3, 400e3), size=8192)
            for rank in whole["ranks"]:
                rank["size"] = 2048 if side == "new" and rank["rank"] else 8192
            report["measurements"].append(whole)
    result = compare_rounds(rounds)
    assert [figure.device for figure in result.figures if figure.id == "matmul.fp8"] == ["rank 0"]
    assert any(note.startswith("not compared") and note.endswith("matmul.fp8") for note in result.notes)


def test_transfers_of_unbound_ranks() -> None:
    """Where a rank could not be bound to its GPU's NUMA node, transfers are shown and do not decide."""
    rounds = simulated(1, new={"transfer.h2d_pinned": 0.5})
    assert compare_rounds(rounds).verdict == "slower"
    for run in (run for runs in rounds for run in runs):
        for measurement in run["measurements"]:
            if measurement["id"].startswith("transfer."):
                measurement["bound"] = False
    found = compare_rounds(rounds)
    assert found.verdict == "same"
    assert {f.outcome for f in found.figures if f.id == "transfer.h2d_pinned"} == {"shown"}
