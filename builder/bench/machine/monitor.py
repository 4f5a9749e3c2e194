"""The state of a GPU while it is measured: clock, power, temperature and throttling, sampled in a thread."""

from __future__ import annotations

import statistics
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from ..core import Item, Run
from .amd import throttled_between
from .gpu import opened

#: Seconds between two samples. NVML needs some microseconds to a millisecond for each figure.
PERIOD_S = 0.02
#: How long the end of the block waits for a sample that has begun.
_PATIENCE_S = 0.5

#: Set once a driver did not answer: it is not asked again, so at most one thread hangs in it.
_hung = threading.Event()


class Monitor:
    """What was sampled while a measurement ran."""

    def __init__(self, opens: Callable[[], Any] = lambda: None) -> None:
        """``opens`` returns what samples the GPU; None: nothing does."""
        self._opens = opens
        self._samples: list[Item] = []
        self._stopped = threading.Event()
        #: Whether more samples will come.
        self.active = False

    def state(self) -> Item:
        """Median ``clock_mhz`` and ``power_w``, largest ``temperature_c``, and ``throttled``: the reasons.

        What the driver does not report is left out; ``throttled`` is an empty list if nothing throttled.
        """
        samples = list(self._samples)
        out: Item = {}
        for field, summary in (
            ("clock_mhz", statistics.median),
            ("power_w", statistics.median),
            ("temperature_c", max),
        ):
            values = [sample[field] for sample in samples if field in sample]
            if values:
                out[field] = round(float(summary(values)), 1)
        reasons = _throttled(samples)
        return out if reasons is None else {**out, "throttled": reasons}

    @property
    def count(self) -> int:
        """The number of samples so far."""
        return len(self._samples)

    def _watch(self) -> None:
        """The thread. It ends at the first error; what was sampled before counts."""
        try:
            gpu = self._opens()
            while gpu is not None and not self._stopped.is_set():
                sample = gpu.sample()
                if self._stopped.is_set() or not sample:
                    break
                self._samples.append(sample)
                self._stopped.wait(PERIOD_S)
        except Exception:  # whatever a driver does, the measurement goes on without it
            pass
        self.active = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Samples until the block ends."""
        thread = threading.Thread(target=self._watch, name="gpu monitor", daemon=True)
        self.active = True
        try:
            thread.start()
        except RuntimeError:  # a limit on the number of threads
            self.active = False
        try:
            yield
        finally:
            self._stopped.set()
            if thread.ident is not None:
                thread.join(_PATIENCE_S)
            if thread.is_alive():
                _hung.set()


def _throttled(samples: list[Item]) -> list[str] | None:
    """The reasons that held longer than a moment; None if unknown.

    NVML reports "hardware slowdown" also while a clock changes. So a reason counts if two samples in a row
    have it.
    """
    residencies = [sample["residency"] for sample in samples if "residency" in sample]
    if len(residencies) > 1:
        return throttled_between(residencies[0], residencies[-1])
    reasons = [sample["throttled"] for sample in samples if "throttled" in sample]
    if len(reasons) < 2:
        return None
    lasting = {name for now, later in zip(reasons, reasons[1:]) for name in now if name in later}
    return sorted(lasting)


@contextmanager
def monitor(run: Run, index: int) -> Iterator[Monitor]:
    """Samples a GPU every 20 ms until the block ends. Never raises, and never waits longer than 0.5 s.

    The thread does not hold Python's lock while it waits for the driver. A driver that hangs costs the block
    0.5 s once; after that there are no samples in this process.
    """
    try:
        opens = None if _hung.is_set() else opened(run, index)
    except Exception:  # torch does not describe the GPU: there is nothing to sample
        opens = None
    if opens is None:
        yield Monitor()
        return
    watch = Monitor(opens)
    with watch.running():
        yield watch
