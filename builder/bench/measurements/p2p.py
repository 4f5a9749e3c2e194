"""Copies from each GPU to each other one, in one process that sees them all."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from ..core import Item, Run, one_line, skip, warn
from ..machine.network import has_direct_links
from .accuracy import checked, require, wrong_results
from .timing import gpu_seconds, spread

_SIZE = 256 << 20
#: Samples per pair, and seconds that one of them takes.
_SAMPLES = 5
_SAMPLE_S = 0.01
#: A pair of directly linked GPUs counts as slow below this fraction of the median pair.
_EVEN = 0.8
#: The same for all pairs of one GPU together, where pairs may differ: by sockets, switches and bridges.
_EVEN_GPU = 0.5
_NAMED = 4
_ADVICE = "a link between GPUs is down: nvidia-smi nvlink -s, nvidia-smi topo -m; rocm-smi --showtopo"


def measure_pairs(run: Run) -> Item:
    """The bandwidth from each GPU to each other, one pair at a time.

    The figure is that of the median pair. The matrix is under ``pairs``.
    """
    if run.gpus < 2:
        raise skip("this process sees one GPU")
    pairs, samples, wrong = _matrix(run)
    run.torch.cuda.empty_cache()  # other processes use these GPUs
    check = checked("words that differ after the copies", wrong, 0, wrong == 0)
    require(check, f"{wrong} words differ after copies between GPUs", wrong_results("a link, GPU or driver"))
    medians = [statistics.median(values) for values in zip(*samples)]
    figures = {**spread("gb_per_s", medians), "better": "higher", "device": run.device, **check}
    figures.update(size=_SIZE, gpus=run.gpus, pairs=pairs)
    slow = _slow(run, pairs)
    if slow and not run.shared_gpus:  # else it may be the other program's copies
        raise warn(f"slower than the others: {'; '.join(slow[:_NAMED])}", _ADVICE, **figures)
    return figures


def _matrix(run: Run) -> tuple[list[Item], list[list[float]], int]:
    """The pairs, the samples of each of them, and how many words were wrong."""
    try:
        buffers = [_buffer(run, index) for index in range(run.gpus)]
    except RuntimeError as e:
        if "busy or unavailable" in str(e):  # compute mode EXCLUSIVE_PROCESS
            raise skip(f"another process uses a GPU exclusively: {one_line(e)}") from None
        raise

    pairs, samples, wrong = [], [], 0
    for source in range(run.gpus):
        for target in range(run.gpus):
            if source != target:
                rates, errors = _measure(run, buffers, source, target)
                wrong += errors
                samples.append(rates)
                pairs.append(_pair(run, source, target, rates))
    return pairs, samples, wrong


def _buffer(run: Run, index: int) -> Any:
    """An array on a GPU whose numbers no other GPU's array has at the same place."""
    torch = run.torch
    size = int(min(_SIZE, torch.cuda.mem_get_info(index)[0] // 8))
    return torch.arange(size // 4, dtype=torch.int32, device=_device(index)).add_(index)


def _device(index: int) -> str:
    return f"cuda:{index}"


def _pair(run: Run, source: int, target: int, rates: list[float]) -> Item:
    direct = run.torch.cuda.can_device_access_peer(target, source)
    return {"from": source, "to": target, "gb_per_s": statistics.median(rates), "direct": bool(direct)}


def _measure(run: Run, buffers: list[Any], source: int, target: int) -> tuple[list[float], int]:
    """GB/s of each sample, and how many words were wrong."""
    torch = run.torch
    words = min(buffers[source].numel(), buffers[target].numel())
    array = buffers[source][:words]
    copy = torch.zeros(words, dtype=torch.int32, device=_device(target))
    torch.cuda.synchronize(target)
    with torch.cuda.device(source):  # a copy runs on the stream of its source
        _copy(array, copy, 1)  # opens the path
        once_s = gpu_seconds(run, partial(_copy, array, copy, 1))
        times = int(max(1, min(16, _SAMPLE_S / max(once_s, 1e-9))))
        several = partial(_copy, array, copy, times)
        rates = [1e-9 * 4 * words * times / gpu_seconds(run, several) for _ in range(_SAMPLES)]
    expected = torch.arange(words, dtype=torch.int32, device=_device(target)).add_(source)
    return rates, int((copy != expected).sum().item())


def _copy(source: Any, target: Any, times: int) -> None:
    for _ in range(times):
        target.copy_(source, non_blocking=True)


def _slow(run: Run, pairs: list[Item]) -> list[str]:
    """The pairs, or the GPUs, that are slower than the others."""
    usual = statistics.median(pair["gb_per_s"] for pair in pairs)
    if _equal_links(run):
        return [
            f"GPU {pair['from']} to {pair['to']}: {pair['gb_per_s']:.3g} of {usual:.3g} GB/s"
            for pair in pairs
            if pair["gb_per_s"] < _EVEN * usual
        ]
    if run.gpus < 3:
        return []
    slow = []
    for index in range(run.gpus):
        own = statistics.median(pair["gb_per_s"] for pair in pairs if index in (pair["from"], pair["to"]))
        if own < _EVEN_GPU * usual:
            slow.append(f"GPU {index} with all others: {own:.3g} of {usual:.3g} GB/s")
    return slow


def _equal_links(run: Run) -> bool:
    """Whether every pair has the same link: modules of NVIDIA from A100 on, by NVSwitch or all to all.

    Pairs of an MI250X differ: two of its GPUs share a module.
    """
    cuda = run.torch.cuda
    modern = all(cuda.get_device_properties(index).major >= 8 for index in range(run.gpus))
    linked = all(has_direct_links(cuda.get_device_name(index)) for index in range(run.gpus))
    return run.build == "CUDA" and modern and linked
