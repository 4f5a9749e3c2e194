"""Probes of the GPUs' health: memory errors, persistence mode, clocks under load."""

from __future__ import annotations

from ..core import Item, Run, fail, skip, warn
from ..machine.gpu import gpu_state, loaded_state


def probe_ecc(run: Run) -> str:
    """The GPUs' memory has no uncorrected errors."""
    states = _states_with(run, "ecc", "ecc_uncorrected", "remap_failed", "remap_pending")
    for index, state in states.items():
        if state.get("ecc_uncorrected") or state.get("remap_failed"):
            advice = (
                "the GPU's memory is faulty: take the node out of service and report it to its administrators"
            )
            raise fail(f"GPU {index}: {_describe_errors(state)}", advice)
        if state.get("remap_pending"):
            seen = f"GPU {index}: memory rows are waiting to be replaced"
            raise warn(seen, "the GPU must be reset: report it to the node's administrators")
        if state.get("ecc") is False:
            advice = "memory errors stay unnoticed; to turn ECC on: nvidia-smi -e 1, then reboot (needs root)"
            raise warn(f"GPU {index}: ECC is off", advice)
    return "no uncorrected error"


def _describe_errors(state: Item) -> str:
    found = []
    if state.get("ecc_uncorrected"):
        found.append(f"{state['ecc_uncorrected']} memory errors that ECC could not correct")
    if state.get("remap_failed"):
        found.append("memory rows that could not be replaced")
    return ", ".join(found)


def probe_persistence(run: Run) -> str:
    """The driver stays loaded between jobs."""
    states = _states_with(run, "persistence")
    off = [index for index, state in states.items() if not state["persistence"]]
    if off:
        seen = f"off on GPU {', '.join(map(str, off))}"
        advice = (
            "every start loads the driver again, which takes seconds: "
            "nvidia-smi -pm 1, or nvidia-persistenced (needs root)"
        )
        raise warn(seen, advice)
    return "on"


def _states_with(run: Run, *keys: str) -> dict[int, Item]:
    """The states of this rank's GPUs that have one of these keys. Raises a skip if there is none."""
    if not run.own_gpus:
        raise skip("no GPU")
    states = {index: gpu_state(run, index) for index in run.own_gpus}
    states = {index: state for index, state in states.items() if any(key in state for key in keys)}
    if not states:
        raise skip("the driver does not report it here")
    return states


def probe_clocks(run: Run) -> str:
    """The GPUs' clocks and temperatures under load, and what throttles them."""
    if not run.own_gpus:
        raise skip("no GPU")
    seen = []
    problems = []
    for index in run.own_gpus:
        state = loaded_state(run, index)
        run.states_under_load[index] = state
        if state:
            seen.append(f"GPU {index}: {_describe_clocks(state)}")
            problems.append(_slow_reason(state))

    if not seen:
        raise skip("the driver does not report it here")
    problem = next(filter(None, problems), "")
    if problem:
        advice = f"the GPU is slowed down ({problem}): check cooling, power supply, and clock settings"
        raise warn("; ".join(seen), advice)
    return "; ".join(seen)


def _describe_clocks(state: Item) -> str:
    words = [f"{state['clock_mhz']:.0f} MHz" if "clock_mhz" in state else "clock unknown"]
    if "clock_max_mhz" in state:
        words.append(f"of {state['clock_max_mhz']:.0f}")
    if "temperature_c" in state:
        words.append(f"{state['temperature_c']:.0f} C")
    if state.get("throttled"):
        words.append("throttled by " + ", ".join(state["throttled"]))
    return " ".join(words)


def _slow_reason(state: Item) -> str:
    """Why a GPU is slower than it should be, or empty. A power cap is usual under full load."""
    serious = [reason for reason in state.get("throttled", []) if reason != "power cap"]
    if serious:
        return ", ".join(serious)
    if state.get("clock_mhz", 1e9) < 0.5 * state.get("clock_max_mhz", 0):
        return "clock below half of its maximum"
    return ""
