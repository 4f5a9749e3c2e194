"""A benchmark whose ranks do simple work without torch, so that every fault can be made on purpose."""

from __future__ import annotations

from pathlib import Path

__all__ = ["RANKS", "clock_while"]

#: Code for ``tests.support.smoke.Modified``. Every rank has a GPU. It works alone, then meets the others:
#: each rank writes a file into the folder $MEETING, and waits for the files of all others. Tests redefine
#: ``fault`` (only rank 1 calls it while it works alone), ``in_meeting`` (all ranks, before they write their
#: file) or ``work``.
RANKS = f"""
sys.path.insert(1, {str(Path(__file__).parents[2])!r})
from tests.support.fake_torch import fake_torch
from bench.measurements.accuracy import checked
from bench.measurements.timing import Timing, rate
FOLDER = os.environ.get("MEETING", "")

def take(run):
    run.torch = fake_torch("CUDA", devices=2)
    return "made up"

def figure(value):
    seconds = Timing([1.0, 1.0, 1.0])
    return {{**rate("gflop_per_s", value, seconds, device="x"), **checked("nothing", 0, 0, True)}}

def work(run):
    if run.place.rank == 1:
        fault(run)
    return figure(100.0)

def fault(run):
    pass

def meet(run):
    in_meeting(run)
    open(os.path.join(FOLDER, str(run.place.rank)), "w").close()
    while len([n for n in os.listdir(FOLDER) if n.isdigit()]) < run.place.ranks:
        time.sleep(0.01)
    return figure(1.0)

def in_meeting(run):
    pass

bench.probes.PROBES[:] = [bench.core.Probe("torch.import", take)]
bench.measurements.MEASUREMENTS[:] = [
    bench.core.Measurement("work", lambda run: work(run)),
    bench.core.Measurement("alone", lambda run: figure(1.0), "once"),
    bench.core.Measurement("allreduce.node", meet, "all"),
]
"""

#: The launcher's clock stands still while ``{condition}`` is false: a busy machine makes no rank late.
_CLOCK = """
class Clock:
    def __init__(self):
        self.runs, self.now, self.seen = False, 0.0, time.monotonic()

    def monotonic(self):
        before, self.seen = self.seen, time.monotonic()
        if self.runs:
            self.now += self.seen - before
        return self.now

clock = Clock()
evaluate = bench.ranks.watchdog.Watchdog.evaluate

def evaluate_and_look(self, now):
    evaluate(self, now)
    clock.monotonic()  # what has passed until now
    ranks = self.ranks
    clock.runs = {condition}

bench.ranks.watchdog.Watchdog.evaluate = evaluate_and_look
bench.ranks.launcher.time = bench.ranks.rank.time = clock
"""


def clock_while(condition: str) -> str:
    """Code for ``tests.support.smoke.Modified``: time limits count while a condition of ``ranks`` is true."""
    return _CLOCK.format(condition=condition)
