"""Everything that one rank does, as a sequence of events.

Each step is announced before it begins, so that a hang or a crash can be named. The events:

    {"begin": ID}                     what comes next; with "together": true for what all ranks do together
    {"probe": FINDING}                the result of a probe
    {"facts": {...}}                  the facts of this machine
    {"measurement": FINDING}          the result of a measurement
    {"ready": true}                   waits for other ranks; false: takes no part in what all do together
    {"end": true, "after": {...}}     the last event; "after" holds the state of its GPU under load
"""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import Callable, Generator, Iterator

from .core import Item, Measurement, Outcome, Probe, Run, finding, median_key, one_line
from .machine.facts import facts
from .machine.processor import usable_cores
from .measurements import MEASUREMENTS
from .measurements.accuracy import WRONG_RESULTS
from .probes import MINOR, PROBES

#: The scopes of what a rank measures while the other ranks of its node wait.
_TURN = ("turn", "once")
#: Probes that take seconds, and whose answer one run of an image has for all: not with ``--device-only``.
_LONG = ("gpu.memory",)


def examine(run: Run, agree: Callable[[], Item]) -> Iterator[Item]:
    """Run all probes and measurements, and yield their events.

    Args:
        run: of this rank.
        agree: waits until all ranks are ready. Returns the launcher's order: ``go``, and ``hosts``
            or ``why``; or ``turn``, after which it is called again.
    """
    yield from _probe(run, late=False)
    _share_cores(run)
    yield from _describe(run)
    run.started = time.monotonic()
    in_turns = run.place.ranks > 1 and run.options.framework == "torch"
    yield from _measure_alone(run, ("device",) if in_turns else ("device", *_TURN))
    order: Item = {"go": True}
    if in_turns:
        order = yield from _take_turn(run, agree)
    yield from _measure_together(run, order)
    yield from _probe(run, late=True)
    yield {"end": True, "after": run.loaded}


def _probe(run: Run, late: bool) -> Iterator[Item]:
    for probe in PROBES:
        left_out = run.options.device_only and probe.id in _LONG
        if probe.late == late and run.options.framework in probe.of and not left_out:
            yield {"begin": probe.id}
            yield {"probe": perform(probe.id, partial(_look, run, probe))}


def _look(run: Run, probe: Probe) -> Item:
    return {"seen": probe.look(run)}


def _share_cores(run: Run) -> None:
    """Limit the threads of each rank of a node with GPUs to its part of the shared cores."""
    if run.torch is None or not run.own_gpus or run.place.local_ranks < 2:
        return
    cores, ranks = usable_cores(), run.place.local_ranks
    if cores * ranks > (os.cpu_count() or 0):  # else each rank has cores of its own
        run.torch.set_num_threads(max(1, min(cores // ranks, run.torch.get_num_threads())))


def _describe(run: Run) -> Iterator[Item]:
    yield {"begin": "facts"}
    try:
        yield {"facts": facts(run)}
    except Exception as e:
        advice = "the facts about this machine are missing from the report; "
        advice += "the results are valid without them"
        yield {"probe": finding("facts", "warn", one_line(e), advice)}


def _measure_alone(run: Run, scopes: tuple[str, ...]) -> Iterator[Item]:
    """Yield the measurements of some scopes, which a rank runs without the others."""
    place = run.place
    has_device = bool(run.own_gpus) or place.local_rank == 0
    for measurement in MEASUREMENTS:
        elsewhere = measurement.scope == "once" and (place.rank > 0 or run.options.device_only)
        unwanted = run.options.framework not in measurement.of
        if measurement.scope not in scopes or elsewhere or unwanted or not has_device:
            continue
        yield {"begin": measurement.id}
        yield {"measurement": _measure(run, measurement)}


def _take_turn(run: Run, agree: Callable[[], Item]) -> Generator[Item, None, Item]:
    """Yield the measurements during which the other ranks of this node wait.

    Returns the order for all ranks.
    """
    needs_gpu = run.options.expect in ("nvidia", "amd")
    ready = {"ready": run.torch is not None and (run.gpus > 0 or not needs_gpu)}
    while True:
        yield ready
        began = time.monotonic()
        order = agree()
        run.started += time.monotonic() - began  # the budget does not count the time of other ranks
        if not order.get("turn"):
            return order
        yield from _measure_alone(run, _TURN)


def _measure_together(run: Run, order: Item) -> Iterator[Item]:
    """Yield the measurements that all ranks run together; only torch has any."""
    if run.options.framework != "torch":
        return
    run.hosts = list(order.get("hosts", []))
    broken = ""
    for measurement in MEASUREMENTS:
        if measurement.scope != "all":
            continue
        yield {"begin": measurement.id, "together": True}
        if not order.get("go"):
            advice = "all ranks must take part: see the other findings"
            yield {"measurement": finding(measurement.id, "fail", str(order.get("why")), advice)}
        elif broken:
            # The other ranks may still wait in it: no rank can join them again.
            yield {"measurement": finding(measurement.id, "skip", f"{broken} failed")}
        else:
            # The budget does not count here: all ranks must do the same.
            item = _measure(run, measurement._replace(always=True))
            # A wrong result is found by its rank alone, which goes on with the others.
            failed = item["status"] == "fail" and "correctness" not in item
            broken = measurement.id if failed else ""
            yield {"measurement": item}


def _measure(run: Run, measurement: Measurement) -> Item:
    """Return the result of a measurement, or the reason why it is skipped."""
    own_kind = "gpu" if run.own_gpus else "cpu"
    if measurement.only and run.module is not None and measurement.only != own_kind:
        return finding(measurement.id, "skip", f"on {measurement.only.upper()}s only")
    if run.left_s <= 0 and not measurement.always:
        run.missed.append(measurement.id)
        return finding(measurement.id, "skip", f"the time budget of {run.budget_s:.0f} s is spent")

    def look() -> Item:
        if run.own_gpus and run.torch is not None:
            run.torch.cuda.set_device(run.index)  # events are recorded on the current device
            run.torch.cuda.empty_cache()  # sizes depend on free memory, not on what ran before
        return dict(measurement.look(run))

    item = perform(measurement.id, look)
    run.results.append(item)
    return item


def perform(name: str, look: Callable[[], Item]) -> Item:
    """Return the result of a probe or measurement as a finding, whatever happens in it.

    Args:
        name: its id.
        look: returns its fields, or raises an Outcome or anything else.
    """
    try:
        item = {**finding(name, "pass", ""), **look()}
    except Outcome as o:
        return {**finding(name, o.status, o.seen, o.advice), **o.fields}
    except Exception as e:
        status = "warn" if MINOR.match(name) else "fail"
        return finding(name, status, one_line(e), _advice(name, e))

    check = item.get("correctness", {})
    if not check.get("ok", True):
        value = check["value"]
        shown = f"{value:.3g}" if isinstance(value, float) else value
        seen = f"{check['check']}: {shown}, expected: {check['limit']}"
        item.update(finding(name, "fail", seen, WRONG_RESULTS))
    key = median_key(item)
    value = item.get(key, 0.0)
    if not (isinstance(value, (int, float)) and math.isfinite(value)):
        advice = "the clock or the device's events do not work"
        return finding(name, "fail", f"{key} is {value}", advice)
    return item


def _advice(name: str, error: Exception) -> str:
    """Return the advice about an exception that a probe or measurement did not expect."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "alloc" in text:
        return (
            "too little memory: check whether another job uses this device, "
            "and the container's memory limit"
        )
    if "duplicate gpu" in text:  # NCCL's words
        return "several ranks use one GPU: start one rank per GPU, or correct CUDA_VISIBLE_DEVICES"
    if name.startswith("allreduce"):
        return (
            "a rank ended, or the network between the ranks failed: "
            "set NCCL_SOCKET_IFNAME to the fast interface; NCCL_DEBUG=INFO prints more"
        )
    return "this check could not be carried out: see the message"
