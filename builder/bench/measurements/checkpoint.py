"""Writing and reading a checkpoint."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from ..core import Item, Run, skip, warn
from ..machine.files import file_system
from .accuracy import checked, require
from .timing import spread

#: Bytes of all tensors together, by kind of device.
SIZES = {"cpu": 64 << 20, "gpu": 256 << 20}
_TENSORS = 16
_MOST_REPEATS = 5


def measure_write(run: Run) -> Item:
    """torch.save of a state of many tensors, until the file system has it on disk (fsync)."""
    torch, device = run.need_torch, run.device
    folder = run.options.scratch or run.folder or tempfile.gettempdir()
    size = SIZES[run.kind]
    stat = os.statvfs(folder)
    if stat.f_frsize * stat.f_bavail < 3 * size:
        seen = f"{folder} has less than {3 * size >> 20} MiB free"
        raise warn(seen, "checkpoints need more space: use --scratch with another folder")

    words = size // 4 // _TENSORS
    state = {}
    for i in range(_TENSORS):
        state[f"layer{i}"] = torch.arange(words, dtype=torch.float32, device=device).mul_(i + 1)
    path = os.path.join(folder, f"builder-smoke-{os.getpid()}.pt")
    run.checkpoint = (path, state)

    rates: list[float] = []
    began, limit_s = time.monotonic(), run.share(2.5)
    while not rates or (len(rates) < _MOST_REPEATS and time.monotonic() - began < limit_s):
        started = time.perf_counter()
        with open(path, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        rates.append(1e-9 * size / (time.perf_counter() - started))

    written = os.path.getsize(path)
    check = checked("bytes of the file, at least", written, size, written >= size)
    fields = {"device": device, "size": size, "file_system": file_system(folder)[1]}
    return {**spread("gb_per_s", rates), "better": "higher", **fields, **check}


def measure_read(run: Run) -> Item:
    """torch.load of the same file, compared tensor by tensor.

    The kernel is asked to drop the file from its page cache; some file systems do not.
    """
    if run.torch is None:
        raise skip("no torch")
    if run.checkpoint is None:
        raise skip("no checkpoint was written")
    path, state = run.checkpoint
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())

    rates: list[float] = []
    found: dict[str, Any] = {}
    try:
        began, limit_s = time.monotonic(), run.share(2.0)
        while not rates or (len(rates) < _MOST_REPEATS and time.monotonic() - began < limit_s):
            seconds, found = _load(run, path)
            rates.append(1e-9 * size / seconds)
    finally:
        remove_checkpoint(run)

    wrong = [name for name in state if name not in found or not run.torch.equal(state[name], found[name])]
    check = checked("tensors that differ", len(wrong), 0, not wrong)
    seen = f"{len(wrong)} of {len(state)} tensors are not what was written"
    require(
        check,
        seen,
        "the file system damages files, or torch's library does: try --scratch with another folder",
    )
    return {**spread("gb_per_s", rates), "better": "higher", "device": run.device, "size": size, **check}


def remove_checkpoint(run: Run) -> None:
    """Removes the checkpoint, also where no time was left to read it."""
    if run.checkpoint is not None:
        path, _ = run.checkpoint
        run.checkpoint = None
        if os.path.exists(path):
            os.unlink(path)


def _load(run: Run, path: str) -> tuple[float, dict[str, Any]]:
    """The seconds that it takes to load a checkpoint, and its content."""
    with open(path, "rb") as f:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        state = run.torch.load(f, map_location=run.device)
        run.synchronize()
        return time.perf_counter() - started, state
