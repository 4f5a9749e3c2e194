"""torch's DataLoader with worker processes."""

from __future__ import annotations

import importlib
import math
import tempfile
import time
import zlib
from typing import Any

from ..core import Item, Outcome, Run, fail, warn
from ..machine.files import SHORT_TMP, long_for_sockets
from ..machine.processor import usable_cores
from .accuracy import checked
from .timing import spread

#: Seconds after which a worker that sends nothing counts as hung.
WORKER_TIMEOUT_S = 20
_TIMED_OUT = "timed out"


class Samples:
    """A data set of compressed images for torch's DataLoader. Reading one means to unpack and scale it."""

    SHAPE = (3, 64, 64)
    DISTINCT = 16

    def __init__(self, torch: Any, count: int) -> None:
        self.torch = torch
        self.count = count
        size = math.prod(self.SHAPE)
        images = [bytes((i * 7 + k * (i + 3)) % 251 for k in range(size)) for i in range(self.DISTINCT)]
        self.packed = [zlib.compress(image, 1) for image in images]
        self.sums = [float(sum(image)) for image in images]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Any, int]:
        data = bytearray(zlib.decompress(self.packed[i % self.DISTINCT]))
        image = self.torch.frombuffer(data, dtype=self.torch.uint8).reshape(self.SHAPE)
        return image.float().div_(255), i

    def expected(self) -> float:
        """The sum of all pixels of an epoch."""
        return sum(self.sums[i % self.DISTINCT] for i in range(self.count))


def measure_loader(run: Run) -> Item:
    """Samples that worker processes unpack, batch and send through shared memory.

    Forked workers may hang by chance: they inherit a lock that another thread held at that moment. Therefore
    a first hang is only a warning; a second one is a failure.
    """
    samples = Samples(run.need_torch, 1024)
    try:
        return load_epochs(run, samples)
    except RuntimeError as e:
        reason = _first_line(e)
        if _TIMED_OUT not in reason or long_for_sockets(tempfile.gettempdir()):
            raise _worker_failure(reason) from None
    try:
        item = load_epochs(run, samples)
    except RuntimeError as e:
        raise _worker_failure(_first_line(e)) from None
    advice = (
        "another thread probably held a lock when the workers were forked: "
        "multiprocessing_context='spawn' or 'forkserver' avoids that"
    )
    raise warn(f"DataLoader workers hung once, then worked: {reason}", advice, **item)


def _first_line(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no reason given"


def _worker_failure(reason: str) -> Outcome:
    folder = tempfile.gettempdir()
    if _TIMED_OUT in reason and long_for_sockets(folder):
        return fail(f"DataLoader workers hang: {folder} is too long a path for sockets", SHORT_TMP)
    advice = "too little shared memory (--shm-size, --ipc=host; see memory.shm), or too little memory"
    return fail(f"a DataLoader worker ended: {reason}", advice)


def load_epochs(run: Run, samples: Samples) -> Item:
    """Reads some epochs. Raises RuntimeError if a worker dies or hangs."""
    torch = run.need_torch
    workers = max(1, min(4, usable_cores()))
    batch = 64
    options: Item = {
        "batch_size": batch,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(8),
        "num_workers": workers,
        "persistent_workers": True,
        "timeout": WORKER_TIMEOUT_S,
        "multiprocessing_context": "fork",
    }
    limit_s = run.share(5.0)
    began = time.monotonic()
    loader = importlib.import_module("torch.utils.data").DataLoader(samples, **options)

    rates: list[float] = []
    worst = 0.0
    every_sample = True
    while len(rates) < 2 or (len(rates) < 6 and time.monotonic() - began < limit_s):
        started = time.perf_counter()
        pixels, indices = _read_epoch(torch, loader)
        rates.append(len(samples) / (time.perf_counter() - started))
        worst = max(worst, abs(pixels / samples.expected() - 1))
        every_sample = every_sample and indices == len(samples) * (len(samples) - 1) / 2
    del loader  # ends the workers

    limit = 1e-5
    what = "error of the sum of an epoch's pixels; every sample once"
    check = checked(what, worst, limit, worst < limit and every_sample)
    fields = {"better": "higher", "device": "cpu", "size": batch, "workers": workers}
    return {**spread("samples_per_s", rates[1:]), **fields, **check}  # the first epoch starts the workers


def _read_epoch(torch: Any, loader: Any) -> tuple[float, float]:
    """The sum of all pixels of an epoch, from 0 to 255, and the sum of all indices."""
    pixels = indices = 0.0
    for images, numbers in loader:
        pixels += float(images.sum(dtype=torch.float64)) * 255
        indices += float(numbers.sum())
    return pixels, indices
