"""Probes of the GPUs' health: other programs, memory errors, links, and clocks under load."""

from __future__ import annotations

import re
import time
from typing import Callable

from ..core import Item, Run, fail, skip, warn
from ..machine.gpu import gpu_state, gpu_use, identity

#: Why a check is skipped because of ``gpu.idle``.
SHARED = "another program uses the GPU (gpu.idle)"
#: Memory in use that is no sign of another program: the driver's own and this process's.
_OWN_BYTES = 2 << 30
_OWN_PART = 0.05
#: How busy a GPU may be, in percent; how often and after which time it is looked at again if it is busier.
_BUSY = 10
_LOOKS, _WATCH_S = 3, 0.5
#: GPUs of data centres, whose ECC is on by default. On GeForce and RTX cards it is off or missing.
_WITH_ECC = re.compile(r"\b(Tesla|[PVAHBL]\d{2,3}|T4|GH200|GB[23]00|L40S)\b")
#: GPUs that are part of one system with the host: not attached by PCIe, and Linux uses their memory, too.
_SUPERCHIPS = re.compile(r"\bG[BH]\d{2,3}\b|\bMI300A\b")


def probe_idle(run: Run) -> str:
    """Check that no other program uses the GPUs. Runs before this process has used them."""
    signs = {index: _signs(run, index, use) for index, use in _reported(run, _use).items()}
    shared = {index: found for index, found in signs.items() if found}
    run.shared_gpus.update(shared)
    if shared:
        seen = "; ".join(f"GPU {index}: {', '.join(found)}" for index, found in shared.items())
        advice = (
            "another program uses the GPU: the figures are too low, and memory may not suffice; "
            "run again when it is idle, or request it for this job alone (nvidia-smi, rocm-smi)"
        )
        raise warn(seen, advice)
    return "no other program"


def _reported(run: Run, look: Callable[[Run, int], Item]) -> dict[int, Item]:
    """Return what the driver reports about each GPU, by index. Raises a skip if it is nothing."""
    found = {index: look(run, index) for index in run.need_gpus}
    reported = {index: item for index, item in found.items() if item}
    if not reported:
        raise skip("the driver does not report it here")
    return reported


def _use(run: Run, index: int) -> Item:
    """Return a GPU's use by all processes; of a MIG slice the memory only, as torch sees it."""
    use = gpu_use(run, index)
    if use or run.build != "CUDA":
        return use
    free, total = run.torch.cuda.mem_get_info(index)  # creates this process's context
    return {"memory_bytes": total - free, "total_bytes": total}


def _signs(run: Run, index: int, use: Item) -> list[str]:
    """Return the signs that another program uses a GPU; empty if there are none.

    A process alone is no sign: services of the node may hold a GPU open. Whether it is this one
    cannot be told either, because a container may have other process ids than the driver reports.
    """
    signs = []
    used, total = use.get("memory_bytes", 0), use.get("total_bytes", 0)
    name = str(run.torch.cuda.get_device_properties(index).name)
    if used > max(_OWN_BYTES, _OWN_PART * total) and not _SUPERCHIPS.search(name):
        signs.append(f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB in use")
    busy = use.get("busy_percent", 0)
    for _ in range(_LOOKS):
        if busy > _BUSY:  # an average: what has just ended counts, and the start of the driver
            time.sleep(_WATCH_S)
            busy = min(busy, gpu_use(run, index).get("busy_percent", 0))
    if busy > _BUSY:
        signs.append(f"{busy} % busy")
    return signs


def probe_ecc(run: Run) -> str:
    """Check that the GPUs' memory has no uncorrected errors."""
    off = ""
    for index, state in _reported(run, _errors).items():
        _check_memory(index, state)
        if state.get("ecc") is False:
            off = "; ECC is off, as usual for this GPU"
            if _WITH_ECC.search(str(run.torch.cuda.get_device_properties(index).name)):
                advice = "memory errors stay unnoticed; to turn ECC on: "
                advice += "nvidia-smi -e 1, then reboot (needs root)"
                raise warn(f"GPU {index}: ECC is off", advice)
    return "no uncorrected error" + off


def _errors(run: Run, index: int) -> Item:
    """Return a GPU's state if its memory errors are known; empty if not."""
    state = gpu_state(run, index)
    return state if "ecc" in state or "ecc_uncorrected" in state else {}


def _check_memory(index: int, state: Item) -> None:
    """Raise an outcome if a GPU's memory has uncorrected errors, or rows to be replaced."""
    if state.get("ecc_uncorrected") or state.get("remap_failed"):
        seen = f"{state.get('ecc_uncorrected', 0)} memory errors that ECC could not correct"
        if state.get("remap_failed"):
            seen += ", and memory rows that could not be replaced"
        advice = "the GPU's memory is faulty: "
        advice += "take the node out of service and report it to its administrators"
        raise fail(f"GPU {index}: {seen}", advice)
    if state.get("remap_pending"):
        seen = f"GPU {index}: memory rows are waiting to be replaced"
        raise warn(seen, "the GPU must be reset: report it to the node's administrators")


def probe_nvlink(run: Run) -> str:
    """Check that all NVLinks of the GPUs are up."""
    links = _reported(run, lambda run, index: dict(identity(run, index).get("nvlink", {})))
    texts = (f"GPU {index}: {of['active']} of {of['links']} links" for index, of in links.items())
    seen = "; ".join(texts)
    # A card without a bridge has none that is up.
    if any(0 < of["active"] < of["links"] for of in links.values()):
        advice = "copies between GPUs are slower than they should be: nvidia-smi nvlink -s"
        raise warn(seen, advice)
    return seen


def probe_clocks(run: Run) -> str:
    """Return the clock, temperature and throttling of this rank's GPU during its products."""
    if run.index not in run.need_gpus:
        raise skip("no GPU")
    loaded = _loaded_state(run)
    if not loaded:
        raise skip("the driver does not report it here")
    run.loaded = loaded
    seen = f"GPU {run.index}: {_describe_clocks(loaded)}"
    problem = _slow_reason(loaded)
    if problem:
        advice = "check cooling, power supply, and clock settings"
        raise warn(seen, f"the GPU is slowed down ({problem}): {advice}")
    return seen


def _loaded_state(run: Run) -> Item:
    """Return the state of the GPU during the last product that was measured; empty if unknown."""
    products = [item for item in run.results if item["id"].startswith("matmul.")]
    sampled = [item for item in products if "clock_mhz" in item]
    if not sampled:
        return {}
    state = gpu_state(run, run.index)
    for key in ("clock_mhz", "power_w", "temperature_c", "throttled"):
        state.pop(key, None)  # of an idle GPU
        if key in sampled[-1]:
            state[key] = sampled[-1][key]
    return state


def _describe_clocks(state: Item) -> str:
    words = ["clock unknown"]
    if "clock_mhz" in state:
        most = f" of {state['clock_max_mhz']:.0f}" if "clock_max_mhz" in state else ""
        words = [f"{state['clock_mhz']:.0f}{most} MHz"]
    if "temperature_c" in state:
        words.append(f"{state['temperature_c']:.0f} C")
    if state.get("throttled"):
        words.append("throttled by " + ", ".join(state["throttled"]))
    return ", ".join(words)


def _slow_reason(state: Item) -> str:
    """Return the reason why a GPU is slow, or empty. A power cap is usual under full load.

    It halves the clock of cards for 70 W (T4, L4).
    """
    throttled = state.get("throttled", [])
    serious = [reason for reason in throttled if reason != "power cap"]
    if serious:
        return ", ".join(serious)
    least, part = (0.25, "a quarter") if throttled else (0.5, "half")
    if state.get("clock_mhz", 1e9) < least * state.get("clock_max_mhz", 0):
        return f"clock below {part} of its maximum"
    return ""
