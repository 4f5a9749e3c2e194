"""A GPU under load: matrix products that keep it busy, and its state meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

from ..core import Item, Run
from .gpu import gpu_state, pcie_link
from .monitor import monitor

#: How long a GPU is loaded, so that clocks rise and its limits act.
LOAD_S = 0.5
#: How long the load goes on where the driver answers slowly.
_MOST_S = 2.0
#: How long to wait for an answer about the link after the load.
_PATIENCE_S = 1.0
#: Rows of the matrices: they fill every GPU.
SIZE = 8192
#: Samples that a state is made of, at least.
_SAMPLES = 3


def loaded_state(run: Run, index: int) -> Item:
    """The state of a GPU while it multiplies matrices of random numbers, and ``pcie``: its link meanwhile.

    Empty if the driver reports nothing.
    Products of ones draw far less power. The queue is never empty, and other threads ask the driver: some
    of its answers take longer than a product, and a GPU without work is at another clock.
    """
    state = gpu_state(run, index)
    if not state:
        return {}
    for field in ("throttled", "power_w", "clock_mhz", "temperature_c"):
        state.pop(field, None)  # they are of an idle GPU
    link: Item = {}
    asker = threading.Thread(target=_ask_link, args=(run, index, link), daemon=True)
    with monitor(run, index) as watch:
        started = time.monotonic()
        work = _Products(run, index)
        while True:
            work.add()
            elapsed_s = time.monotonic() - started
            if elapsed_s > LOAD_S / 2 and not asker.ident:
                asker.start()
            enough = watch.count >= _SAMPLES or not watch.active
            if elapsed_s > LOAD_S and (enough or elapsed_s > _MOST_S):
                break
    work.finish()
    asker.join(_PATIENCE_S)
    loaded = {**state, **watch.state()}
    return {**loaded, "pcie": dict(link)} if link else loaded


def _ask_link(run: Run, index: int, link: Item) -> None:
    try:
        link.update(pcie_link(run, index))
    except Exception:  # the driver has not answered: then the link is not known
        pass


class _Products:
    """Matrix products on a GPU, of which at least one batch is always in the queue."""

    def __init__(self, run: Run, index: int) -> None:
        torch = run.torch
        self._cuda = torch.cuda
        self._index = index
        # GPUs before Ampere have no units for bf16
        old = run.build == "CUDA" and torch.cuda.get_device_properties(index).major < 8
        self._multiply = torch.mm
        kind = torch.float16 if old else torch.bfloat16
        self._a = torch.randn(SIZE, SIZE, device=f"cuda:{index}", dtype=kind)
        self._events: list[Any] = []

    def add(self) -> None:
        """Queues a batch, and waits for the one before the last."""
        with self._cuda.device(self._index):
            for _ in range(4):
                self._multiply(self._a, self._a)
            event = self._cuda.Event()
            event.record()
        self._events.append(event)
        if len(self._events) > 2:
            self._events.pop(0).synchronize()

    def finish(self) -> None:
        """Waits for the last batch."""
        self._cuda.synchronize(self._index)
