"""False alarms and detection of ``builder smoke --compare``, in a simulated fleet (see ``benchmarks.fleet``).

    python -m benchmarks.bench_verdict                         # prints the tables
    python -m benchmarks.bench_verdict --write                 # and writes them to docs/grading.md
    python -m benchmarks.bench_verdict --measured reports/*    # with the noise of your own reports
    python -m benchmarks.bench_verdict --noise noise.json      # with noise from a file

Reports are random, the comparison is the real one: each comparison of a cell makes old and new reports and
calls ``builder.smoke.compare.compare`` as the command line does: one new run, and two more if the first one
is slower. No GPU is needed; seeds are fixed; two cores need about ten minutes. ``--save-noise FILE`` writes
the noise that was used: correct it by hand, and pass it with ``--noise``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import fleet
from benchmarks.fleet import POWER_LIMITED, Device, Noise
from benchmarks.report import write_page
from builder.smoke.compare import compare
from builder.smoke.kinds import CONTRAST, kind_of, kinds
from builder.smoke.values import SIGMAS

RESULTS = Path(__file__).with_name("verdict.json")
PAGE = Path(__file__).parent.parent / "docs" / "grading.md"
BEGIN, END = "<!-- bench_verdict: begin -->", "<!-- bench_verdict: end -->"
KINDS_BEGIN, KINDS_END = "<!-- kinds: begin -->", "<!-- kinds: end -->"
COMPARISONS = 2000
#: Comparisons of each cell whose result the tests check again.
CHECKED = 10
#: Runs after a first run that is slower, as ``builder smoke --compare`` makes them.
_CONFIRMING_RUNS = 2
_BF16 = "matmul.bf16"
_COLUMNS = 110
_PRODUCTS = ("matmul.tf32", "matmul.fp16", "matmul.bf16", "matmul.fp8")


@dataclass(frozen=True)
class Case:
    """Where old and new runs were made, and what is assumed beyond the noise."""

    old_runs: int = 1
    old_gpus: int = 0
    """GPUs of the old runs, all others than that of the new ones; 0: old and new are on one GPU."""
    device: float | None = None
    """Standard deviation of power-limited figures between GPUs; None: that of the noise."""
    shared: float | None = None
    run_factor: float = 1.0
    """What the noise between runs of a GPU's own figures is multiplied by."""
    host_factor: float = 1.0
    """The same for figures that depend on the host or on files."""
    gpus: int = 1
    """GPUs of each node, all measured at once."""
    without: tuple[str, ...] = ()
    """Figures that the GPU does not have."""

    def noise(self, noise: Mapping[str, Noise]) -> dict[str, Noise]:
        """The noise of this case."""
        out = {}
        for name, n in noise.items():
            if name in self.without:
                continue
            host_bound = kind_of(name, on_gpu=n.on_gpu).host_bound
            changed = replace(n, run=n.run * (self.host_factor if host_bound else self.run_factor))
            if name in POWER_LIMITED:
                device = n.device if self.device is None else self.device
                shared = n.shared if self.shared is None else self.shared
                changed = replace(changed, device=device, shared=shared)
            out[name] = changed
        return out


@dataclass(frozen=True)
class Cell:
    """The results of many comparisons."""

    case: Case
    change: str
    """A key of :data:`CHANGES`."""
    comparisons: int
    first: int
    """Comparisons in which the first new run was slower."""
    slower: int
    """Comparisons that ended with exit code 11."""
    beginning: int
    """Those among the first :data:`CHECKED`."""


def _own_figures(noise: Mapping[str, Noise]) -> dict[str, float]:
    names = [n for n, item in noise.items() if item.on_gpu and not kind_of(n, on_gpu=True).host_bound]
    return dict.fromkeys(names, 0.93)


#: What the new image multiplies figures by, and the figures of which one must be slower; empty: any figure.
CHANGES: dict[str, str] = {
    "none": "nothing changed",
    "bf16": "bf16 -10 %",
    "all": "all GPU figures -7 %",
    "memory": "memory -10 %",
    "products": "all products of tensor cores -10 %",
}


def _speed(change: str, noise: Mapping[str, Noise]) -> dict[str, float]:
    if change == "all":
        return _own_figures(noise)
    product = _BF16 if _BF16 in noise else "matmul.fp16"
    names = {
        "none": (),
        "bf16": (product,),
        "memory": ("memory.copy", "memory.triad"),
        "products": _PRODUCTS,
    }[change]
    return dict.fromkeys(names, 0.9)


_SAME = (Case(old_runs=1), Case(old_runs=3))
_ELSEWHERE = (Case(old_gpus=1), Case(old_runs=3, old_gpus=3), Case(old_runs=3, old_gpus=1))
_SPREADS = ((0.015, 0.9), (0.020, 0.9), (0.025, 0.9), (0.025, 0.8))
CASES: tuple[Case, ...] = (
    *_SAME,
    *(replace(case, device=device, shared=shared) for device, shared in _SPREADS for case in _ELSEWHERE),
)
#: Worse or poorer than assumed, each with the part of its row that says so.
_WITHOUT_FP8 = ("matmul.fp8",)
_FP16_ONLY = ("matmul.tf32", "matmul.bf16", "matmul.fp8")
VARIANTS: dict[str, tuple[Case, ...]] = {
    "GPU run noise x 2": tuple(replace(c, run_factor=2.0) for c in (*_SAME, _ELSEWHERE[1])),
    "host noise x 2": tuple(replace(c, host_factor=2.0) for c in (*_SAME, _ELSEWHERE[1])),
    "8 GPUs of a node": tuple(replace(c, gpus=8) for c in (_SAME[0], _ELSEWHERE[0], _ELSEWHERE[2])),
    "without fp8 (A100)": (replace(_ELSEWHERE[1], without=_WITHOUT_FP8),),
    "fp16 only (V100; the change is in fp16)": (replace(_ELSEWHERE[1], without=_FP16_ONLY),),
}


def cases_of(noise: Mapping[str, Noise]) -> tuple[Case, ...]:
    """The main cases. With noise that was measured there is one fleet, and no assumed ones."""
    return CASES if dict(noise) == fleet.ASSUMED else (*_SAME, *_ELSEWHERE)


def simulate(case: Case, change: str, noise: Mapping[str, Noise], comparisons: int) -> Cell:
    """Compares random reports.

    Args:
        case: where the runs were made.
        change: a key of :data:`CHANGES`.
        noise: of all figures.
        comparisons: how many comparisons are made.
    """
    rng = random.Random(f"{sorted(asdict(case).items())} {change}")
    noise = case.noise(noise)
    speed = _speed(change, noise)
    wanted = set(speed) if change in ("bf16", "memory") else set()
    first = slower = beginning = 0
    for number in range(comparisons):
        here, *there = [[Device(rng, noise) for _ in range(case.gpus)] for _ in range(case.old_gpus + 1)]
        there = there or [here]
        old = [fleet.report(there[i % len(there)], rng, noise, {}) for i in range(case.old_runs)]
        new = [fleet.report(here, rng, noise, speed)]
        regressions = compare(new, old).regressions
        if not regressions:
            continue
        first += 1
        new += [fleet.report(here, rng, noise, speed) for _ in range(_CONFIRMING_RUNS)]
        found = {change.id for change in compare(new, old).regressions}
        if found and (not wanted or found & wanted):
            slower += 1
            beginning += number < CHECKED
    return Cell(case, change, comparisons, first, slower, beginning)


def run(noise: Mapping[str, Noise], comparisons: int, workers: int) -> dict[str, Any]:
    """All cells, as JSON."""
    cases = [*cases_of(noise), *(case for group in VARIANTS.values() for case in group)]
    jobs = [(case, change) for case in cases for change in CHANGES]
    with ProcessPoolExecutor(workers) as pool:
        futures = [pool.submit(simulate, case, change, noise, comparisons) for case, change in jobs]
        cells = [asdict(future.result()) for future in futures]
    return {"rule": rule(), "noise": fleet.noise_json(noise), "comparisons": comparisons, "cells": cells}


def rule() -> dict[str, Any]:
    """The numbers that decide: results are out of date if they differ."""
    return {"sigmas": SIGMAS, "contrast": CONTRAST, "kinds": [asdict(kind) for kind in kinds()]}


def render(results: Mapping[str, Any]) -> str:
    """The tables of docs/grading.md."""
    cells = {(_key(c["case"]), c["change"]): c for c in results["cells"]}
    comparisons = int(results["comparisons"])
    noise = fleet.noise_of(results["noise"])
    header = ["", *CHANGES.values()]
    about = (
        f'Percent of {comparisons} comparisons that end with exit code 11. For "nothing changed" these are '
        "false alarms; the number in parentheses says how often the first run was slower. The standard error "
        f"is {_error(0.02, comparisons)} of a cell of 2, and {_error(0.85, comparisons)} of one of 85."
    )
    lines = [
        textwrap.fill(_about_noise(noise), _COLUMNS),
        "",
        "| figure | run to run | GPU to GPU (files: node to node) | shared |",
        "|---|---|---|---|",
        *_noise_rows(noise),
        "",
        textwrap.fill(about, _COLUMNS),
        "",
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(_row(_name(case), case, cells) for case in cases_of(noise)),
        *(_row(f"{what}: {_name(case)}", case, cells) for what, group in VARIANTS.items() for case in group),
    ]
    return "\n".join(lines) + "\n"


def render_kinds() -> str:
    """The table of kinds in docs/grading.md."""
    lines = [
        "| kind of measurement | floor | usual, run to run | usual, GPU to GPU (or nodes) | decides alone |",
        "|---|---|---|---|---|",
    ]
    for kind in kinds():
        usual = f"{100 * kind.run:.1f} % | {100 * kind.device:.1f} %" if kind.run else "- | -"
        alone = "yes" if kind.decides else "no"
        if kind.decides and kind.host_bound:
            alone = "with the same processor"
        lines.append(f"| {kind.name}: {kind.members} | {100 * kind.floor:.0f} % | {usual} | {alone} |")
    return "\n".join(lines) + "\n"


def _key(case: Mapping[str, Any]) -> str:
    return json.dumps(case, sort_keys=True)


def _row(name: str, case: Case, cells: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    texts = []
    for change in CHANGES:
        cell = cells[_key(asdict(case)), change]
        text = _percent(cell["slower"], cell["comparisons"])
        if change == "none":
            text = f"**{text}** ({_percent(cell['first'], cell['comparisons'])})"
        texts.append(text)
    return f"| {name} | {' | '.join(texts)} |"


def _percent(part: int, whole: int) -> str:
    percent = 100 * part / whole
    return f"{percent:.1f}" if percent < 10 or 99 < percent < 100 else f"{percent:.0f}"


def _error(share: float, comparisons: int) -> str:
    return f"{100 * math.sqrt(share * (1 - share) / comparisons):.1f}"


def _name(case: Case) -> str:
    one, several = ("GPU", "GPUs") if case.gpus == 1 else ("node", "nodes")
    runs = f"{case.old_runs} old run{'s' if case.old_runs > 1 else ''}"
    if not case.old_gpus:
        return f"same {one}, {runs}"
    where = ""
    if case.old_runs > 1:
        where = f" on {case.old_gpus} {one if case.old_gpus == 1 else several}"
    spread = "" if case.device is None else f", sd {100 * case.device:.1f} %, shared {case.shared:g}"
    return f"another {one}, {runs}{where}{spread}"


def _about_noise(noise: Mapping[str, Noise]) -> str:
    own = "assumed"
    if dict(noise) != fleet.ASSUMED:
        own = "measured where there were enough reports, and assumed elsewhere"
    return (
        f"The noise is {own}; the table has standard deviations. *Shared* says how much the figures of one "
        "GPU rise and fall together: 0 not at all, 1 fully. Products of tensor cores, convolutions and "
        "attention are limited by power: if a row of the second table has a standard deviation (sd) and a "
        "shared part, they apply to these figures, GPU to GPU."
    )


def _noise_rows(noise: Mapping[str, Noise]) -> list[str]:
    """A row for all figures with the same noise."""
    groups: dict[Noise, list[str]] = {}
    for name, n in noise.items():
        groups.setdefault(n, []).append(f"`{name}`")
    return [
        f"| {', '.join(names)} | {100 * n.run:.1f} % | {100 * n.device:.1f} % | {n.shared:g} |"
        for n, names in groups.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_verdict", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=COMPARISONS, help="comparisons of each cell")
    parser.add_argument("--measured", type=Path, nargs="+", metavar="REPORTS", help="folders of reports")
    parser.add_argument("--noise", type=Path, metavar="FILE", help="noise from a file")
    parser.add_argument("--save-noise", type=Path, metavar="FILE", help="write the noise that is used")
    parser.add_argument("--stored", action="store_true", help=f"use the results in {RESULTS.name}")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} and {PAGE.name}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.stored:
        results = json.loads(RESULTS.read_text())
    else:
        results = run(_noise(options), options.comparisons, options.workers)
    print(render(results))
    if options.write:
        RESULTS.write_text(_to_text(results))
        write_page(render(results), PAGE, BEGIN, END)
        write_page(render_kinds(), PAGE, KINDS_BEGIN, KINDS_END)
    return 0


def _to_text(results: Mapping[str, Any]) -> str:
    """The results as JSON, each cell on a line of its own."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items() if key != "cells"]
    cells = ",\n".join(json.dumps(cell) for cell in results["cells"])
    return "{\n" + ",\n".join([*parts, f'"cells": [\n{cells}\n]']) + "\n}\n"


def _noise(options: argparse.Namespace) -> dict[str, Noise]:
    """The noise that the command line asks for."""
    noise = dict(fleet.ASSUMED)
    if options.noise:
        noise = fleet.read_noise(options.noise)
    elif options.measured:
        noise = fleet.measured(options.measured)
    if options.save_noise:
        options.save_noise.write_text(json.dumps(fleet.noise_json(noise), indent=1) + "\n")
    return noise


if __name__ == "__main__":
    sys.exit(main())
