"""Bandwidth of the device's memory, and of copies between the host's memory and the GPU's."""

from __future__ import annotations

from typing import Any

from ..core import Item, Run
from ..machine.facts import available_memory
from ..machine.gpu import near_gpu
from .accuracy import checked
from .timing import rate, timed

#: The Infinity Cache of an MI300X holds an eighth of two arrays of 1 GiB, and 3 % of 4 GiB.
_LARGEST = 4 << 30


def measure_copy(run: Run) -> Item:
    """Copy within the device's memory. Bytes read and bytes written both count."""
    torch, device = run.need_torch, run.device
    size = _array_bytes(run)
    source = torch.arange(size // 4, dtype=torch.int32, device=device)
    target = torch.zeros_like(source)
    seconds = timed(run, lambda: target.copy_(source), limit_s=run.share(0.8))
    check = _check_copy(source, target)
    return {**rate("gb_per_s", 2e-9 * size, seconds, device=device, size=size), **check}


def measure_triad(run: Run) -> Item:
    """Add a = b + 3 c as STREAM counts it: two arrays are read, one is written."""
    torch, device = run.need_torch, run.device
    size = _array_bytes(run)
    b = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(1000)
    c = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(77)
    a = torch.empty_like(b)
    seconds = timed(run, lambda: torch.add(b, c, alpha=3, out=a), limit_s=run.share(0.8))

    rest = a.sub_(b).sub_(c).sub_(c).sub_(c)  # exactly 0: all numbers are small integers
    wrong = int((rest != 0).sum().item())
    check = checked("wrong words of b + 3 c", wrong, 0, wrong == 0)
    return {**rate("gb_per_s", 3e-9 * size, seconds, device=device, size=size), **check}


def measure_transfer(run: Run, to_gpu: bool) -> Item:
    """Copy between pinned memory of the host and the GPU's memory."""
    torch = run.need_torch
    # 256 MiB, or an eighth of the GPU's free memory
    size = int(min(256 << 20, torch.cuda.mem_get_info(run.index)[0] // 8))
    with near_gpu(run, run.index) as bound:
        host = torch.arange(size // 4, dtype=torch.int32).pin_memory()
        gpu = torch.arange(size // 4, dtype=torch.int32, device=run.device).add_(1)
        source, target = (host, gpu) if to_gpu else (gpu, host)
        limit_s = run.share(0.5)
        seconds = timed(run, lambda: target.copy_(source, non_blocking=True), limit_s)
        run.synchronize()
        check = _check_copy(source.cpu(), target.cpu())
    fields = {"device": run.device, "size": size, "bound": bound}
    return {**rate("gb_per_s", 1e-9 * size, seconds, **fields), **check}


def _check_copy(source: Any, target: Any) -> Item:
    """Return the check that two arrays are equal."""
    wrong = int((source != target).sum().item())
    return checked("words that differ after the copy", wrong, 0, wrong == 0)


def _array_bytes(run: Run) -> int:
    """Return the size of an array that no cache holds, and that does not fill the memory either."""
    if run.on_gpu:
        free = run.torch.cuda.mem_get_info(run.index)[0]
        return int(min(_LARGEST, free // 8)) & -4096
    available = available_memory() or 1 << 30
    return max(32 << 20, min(256 << 20, available // 16)) & -4096
