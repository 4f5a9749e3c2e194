"""False alarms and detection of ``builder smoke --ab``, on simulated machines.

    python -m benchmarks.bench_verdict           # prints the table, as Markdown

Reports are random, the comparison is the real one. Noise between the runs of one image is what others have
published (builder/deliver/smoke/limits.py); a model adds what a session of runs shares: runs that follow
each other have the same clock mode, placement and neighbours with a probability of :data:`STAYS`. No GPU is
needed; seeds are fixed; two cores need about a minute. The table is in benchmarks/verdict.md.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from builder.deliver.smoke.ab import MIN_ROUNDS, ROUND, Ab, compare_rounds

COMPARISONS = 600
#: Exit code 11 for at most this fraction of comparisons of one image with itself.
ALLOWED = 0.01
#: The probability that a run finds the machine as the run before left it.
STAYS = 0.8

#: Figures of a GPU, and their standard deviation from run to run.
GPU = {
    "matmul.fp32": 0.007,
    "matmul.tf32": 0.008,
    "matmul.fp16": 0.008,
    "matmul.bf16": 0.008,
    "matmul.fp8": 0.008,
    "memory.copy": 0.003,
    "memory.triad": 0.003,
    "transfer.h2d_pinned": 0.006,
    "transfer.d2h_pinned": 0.006,
    "conv.training": 0.010,
    "attention": 0.010,
}
CPU = dict.fromkeys(
    ("matmul.fp32", "memory.copy", "memory.triad", "conv.training", "attention"), 0.03
)
#: Figures that the clock of a GPU decides.
_CLOCKED = ("matmul.", "conv.", "attention")


@dataclass(frozen=True)
class Model:
    """What a machine adds to the noise of single runs."""

    name: str
    tails: bool = False
    """Noise is Student's t with 3 degrees of freedom, of the same standard deviation."""
    drift: float = 0.0
    """Standard deviation of what all figures of a run share; runs that follow each other are alike."""
    clock: tuple[float, float] = (0.0, 0.0)
    """How often the clock is in a slow mode, and by how much it is slower."""
    placement: tuple[float, float] = (0.0, 0.0)
    """The same of pinned copies: memory of the other socket, or neighbours on the link."""
    bound: bool = True
    """Ranks are bound to the GPU's NUMA node. Where they are not, transfers do not decide."""
    neighbours: tuple[float, float] = (0.0, 0.0)
    """The same of all figures: other programs on a CPU."""
    cpu: bool = False


#: One model a row. Comparisons of stored runs ended as slower in 14 to 34 % under these.
MODELS = (
    Model("published noise"),
    Model("heavy tails", tails=True),
    Model("drift 1.5 %", drift=0.015),
    Model("heavy tails and drift", tails=True, drift=0.015),
    Model("clock: 10 % of the time 5 % slower", clock=(0.1, 0.05)),
    Model("clock: 30 % of the time 6 % slower", clock=(0.3, 0.06)),
    Model("placement: 50 % of the time 10 % slower", placement=(0.5, 0.10)),
    Model("placement: 25 % of the time 20 % slower", placement=(0.25, 0.20)),
    Model("the same, ranks cannot be bound", placement=(0.25, 0.20), bound=False),
    Model("neighbours: 40 % of the time 15 % slower", placement=(0.4, 0.15)),
    Model("all of it", True, 0.015, (0.3, 0.06), (0.4, 0.15)),
    Model("CPU, idle", cpu=True),
    Model("CPU, 50 % of the time half as fast", cpu=True, neighbours=(0.5, 0.5)),
    Model("CPU, 30 % of the time a tenth as fast", cpu=True, neighbours=(0.3, 0.9), tails=True),
)
#: What the new image multiplies matmul.bf16 (on a CPU matmul.fp32) by.
CHANGES = (1.0, 0.97, 0.95)


class _Mode:
    """A state that is on for a part of the time, and stays from run to run."""

    def __init__(self, rng: random.Random, mode: tuple[float, float]) -> None:
        self._rng, (self._part, self._loss) = rng, mode
        self._on = rng.random() < self._part

    def next(self) -> float:
        """Return the factor of the next run."""
        if self._rng.random() >= STAYS:
            self._on = self._rng.random() < self._part
        return 1 - self._loss if self._on else 1.0


class Session:
    """A machine, run after run."""

    def __init__(self, model: Model, rng: random.Random) -> None:
        self._model, self._rng = model, rng
        self._drift = rng.gauss(0, model.drift)
        modes = (model.clock, model.placement, model.neighbours)
        self._clock, self._placement, self._neighbours = (_Mode(rng, mode) for mode in modes)

    def report(self, speed: float) -> dict[str, Any]:
        """Return the report of the next run, of an image with this speed."""
        model = self._model
        fresh = self._rng.gauss(0, model.drift * math.sqrt(1 - STAYS**2))
        self._drift = STAYS * self._drift + fresh
        clock, placement, shared = self._clock.next(), self._placement.next(), math.exp(self._drift)
        measurements = []
        changed = "matmul.fp32" if model.cpu else "matmul.bf16"
        for name, sd in (CPU if model.cpu else GPU).items():
            value = 100.0 * shared * math.exp(self._noise(sd)) * self._neighbours.next()
            value *= clock if name.startswith(_CLOCKED) else 1.0
            value *= placement if name.startswith("transfer.") else 1.0
            value *= speed if name == changed else 1.0
            item = {"id": name, "status": "pass", "median_gb_per_s": value, "repeats": 40}
            item |= {"device": "cpu" if model.cpu else "cuda:0", "bound": model.bound}
            measurements.append(item)
        facts = {"devices": [] if model.cpu else [{"name": "a GPU", "uuid": "GPU-1"}]}
        return {"verdict": "pass", "probes": [], "facts": facts, "measurements": measurements}

    def _noise(self, sd: float) -> float:
        if not self._model.tails:
            return self._rng.gauss(0, sd)
        chi = sum(self._rng.gauss(0, 1) ** 2 for _ in range(3))
        return sd / math.sqrt(3) * self._rng.gauss(0, 1) / math.sqrt(chi / 3)


def compare_images(model: Model, speed: float, seed: int, rounds: int = MIN_ROUNDS) -> Ab:
    """Return the result of an A/B run of an image and of one with this speed."""
    session = Session(model, random.Random(f"{model.name} {speed} {seed}"))
    speeds = {"old": 1.0, "new": speed}
    return compare_rounds([[session.report(speeds[side]) for side in ROUND] for _ in range(rounds)])


@dataclass(frozen=True)
class Row:
    """The parts of comparisons that end as slower or unsteady, by the speed of the new image."""

    model: Model
    slower: tuple[float, ...]
    unsteady: tuple[float, ...]


def simulate(model: Model, comparisons: int, rounds: int = MIN_ROUNDS) -> Row:
    """Return the results of many comparisons."""
    slower, unsteady = [], []
    for speed in CHANGES:
        verdicts = [
            compare_images(model, speed, seed, rounds).verdict for seed in range(comparisons)
        ]
        slower.append(verdicts.count("slower") / comparisons)
        unsteady.append(verdicts.count("unsteady") / comparisons)
    return Row(model, tuple(slower), tuple(unsteady))


def render(rows: Sequence[Row], comparisons: int) -> str:
    """Return the table in Markdown."""
    lines = [
        f"Percent of {comparisons} A/B runs of {MIN_ROUNDS} rounds. *Slower* is exit code 11.",
        "",
        "| machine | nothing changed: slower | no verdict | one product -3 %: slower | -5 %: slower |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        texts = [f"{100 * part:.1f}" for part in (row.slower[0], row.unsteady[0], *row.slower[1:])]
        lines.append(f"| {row.model.name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if there are too many false alarms."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_verdict", description=__doc__)
    parser.add_argument(
        "--comparisons", type=int, default=COMPARISONS, help="A/B runs of each cell"
    )
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(simulate, MODELS, [options.comparisons] * len(MODELS)))
    print(render(rows, options.comparisons))
    return 1 if any(row.slower[0] > ALLOWED for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
