"""The probe of the GPUs' memory: nearly all of it is written, and read again."""

from __future__ import annotations

from typing import Any

from ..core import Run, fail, skip
from .gpu_health import SHARED

#: The part of the free memory that is written.
_PART = 0.9
#: Words of 8 bytes in a chunk: 512 MiB.
CHUNK = 1 << 26


def probe_memory(run: Run) -> str:
    """Check that 90 % of the GPUs' free memory holds what is written, each word its number."""
    seen = []
    for index in run.need_gpus:
        if index in run.shared_gpus:
            raise skip(SHARED)
        if _is_shared_with_host(run, index):
            raise skip("GPU and processor share the memory")
        try:
            written, wrong = _write_and_read(run, index)
        except RuntimeError as e:
            if "out of memory" in str(e):  # other ranks on this GPU have taken it
                raise skip(f"GPU {index} has too little free memory") from None
            raise
        if wrong:
            words = f"{wrong} of {written // 8} words"
            advice = "report it to the node's administrators, and use another node"
            advice = f"the GPU's memory is faulty: {advice}"
            raise fail(f"GPU {index}: {words} are not what was written", advice)
        seen.append(f"GPU {index}: {written / 2**30:.1f} GiB")
    return ", ".join(seen)


def _is_shared_with_host(run: Run, index: int) -> bool:
    """Return whether a GPU uses the host's memory (MI300A): filling it would end other programs."""
    properties = run.torch.cuda.get_device_properties(index)
    return bool(getattr(properties, "is_integrated", 0)) or "MI300A" in str(properties.name)


def _write_and_read(run: Run, index: int) -> tuple[int, int]:
    """Return the bytes that were written, and the number of words that were read and differ.

    A word is its own number, so a word that is read from a wrong place differs, too:

        chunk 0: 0, 1, 2 ... CHUNK - 1    chunk 1: CHUNK, CHUNK + 1 ...    chunk 2: 2 CHUNK ...
    """
    torch, device = run.torch, f"cuda:{index}"
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(index)[0]
    wanted = int(_PART * free) // (8 * CHUNK) - 1  # one chunk more is needed to compare
    if wanted < 1:
        raise skip(f"GPU {index} has too little free memory")
    chunks: list[Any] = []
    try:
        numbers = torch.arange(CHUNK, dtype=torch.int64, device=device)
        # Everything is written before anything is read: a wrong address shows.
        for place in range(wanted):
            chunks.append(torch.add(numbers, place * CHUNK))
        torch.cuda.synchronize(index)
        wrong = 0
        for place, chunk in enumerate(chunks):
            wrong += int((chunk.sub_(numbers) != place * CHUNK).sum().item())
        return len(chunks) * CHUNK * 8, wrong
    finally:
        chunks.clear()
        torch.cuda.empty_cache()
