"""Communication between ranks: NCCL on NVIDIA GPUs, RCCL on AMD GPUs, gloo on CPUs.

Every decision that changes what a rank does next (sizes, repeats) is made with all ranks of its group: a rank
that does something else makes the others wait for ever. A wrong result therefore ends no measurement; it is
reported at the end.
"""

from __future__ import annotations

import datetime
import glob
import os
from typing import Any, Callable

from ..core import Item, Run, skip
from ..machine.monitor import monitor
from ..machine.network import ALGORITHMS, algorithm
from .accuracy import checked, require, wrong_results
from .exchanges import EXCHANGES, Exchange, Group
from .timing import Timing, clock_seconds, gpu_seconds, rate

#: Bytes of the whole array, by kind of device. Published figures are those of 1 GiB and more.
SIZES = {"cpu": (1 << 20, 8 << 20), "gpu": (16 << 20, 256 << 20, 1 << 30, 4 << 30)}
#: Bytes of the arrays whose latency is measured.
SMALL_SIZES = (8, 128, 1 << 10, 8 << 10, 64 << 10)
#: A size that would take longer than this is left out.
LIMIT_S = 6.0
#: Seconds of warm-up and of samples per size, from the second size on.
_WARM_UP_S = 0.25
_SAMPLE_S = 0.4
#: Warm-up calls and samples of the first size, for which no time is known.
_FIRST_COUNTS = (10, 10)
#: torch's timeout ends the process; the benchmark's watchdog must come first, because it reports more.
_LATER_THAN_WATCHDOG_S = 60


def measure_collective(run: Run, name: str, where: str) -> Item:
    """Exchanges an array between the ranks of a node (``node``) or of several nodes (``network``).

    Bus bandwidth as nccl-tests counts it, for the best of several sizes, and for all-reduce the latency of
    small arrays. ``name`` is a key of ``EXCHANGES``.
    """
    _check_ranks(run, where)
    _initialize(run)
    group = _group(run, where)
    if len(group.members) == 1:
        raise skip("one rank on this node")

    rows, wrong = _bandwidths(run, group, EXCHANGES[name])
    latencies = _latencies(run, group) if name == "allreduce" else []
    run.nccl_log = _nccl_log() or run.nccl_log
    if name == "allreduce":
        for row in rows:
            row["algorithm"] = _shared_algorithm(run, group, row["size"])

    best = max(rows, key=lambda row: float(row["median_gb_per_s"]))
    check = checked("words of the result that are wrong", wrong, 0, wrong == 0)
    seen = f"{wrong} words of the result over {len(group.members)} ranks are wrong"
    require(check, seen, wrong_results("network, NCCL, RCCL or a device"), device=run.device)
    shown = ("size", "median_gb_per_s", "mad_gb_per_s", "algorithm")
    return {
        **best,
        **check,
        "device": run.device,
        "members": len(group.members),
        "gpus": len(group.members) if run.on_gpu else 0,
        "nodes": len({run.hosts[member] for member in group.members}),
        "backend": _backend(run),
        "sizes": [{key: row[key] for key in shown if key in row} for row in rows],
        **({"latencies": latencies} if latencies else {}),
    }


def _check_ranks(run: Run, where: str) -> None:
    """Raises a skip unless there are several nodes, or several ranks on a node. Equal on all ranks."""
    if run.place.ranks == 1:
        raise skip("one rank; --all-gpus starts one per GPU, --ranks N several on CPUs")
    nodes = set(run.hosts)
    if where == "network" and len(nodes) == 1:
        raise skip("one node")
    if where == "node" and max(run.hosts.count(node) for node in nodes) == 1:
        raise skip("one rank on each node")


def _initialize(run: Run) -> None:
    """Connects all ranks. Every rank comes here at about the same time."""
    distributed = run.need_torch.distributed
    if distributed.is_initialized():
        return
    distributed.init_process_group(
        _backend(run),
        init_method=run.place.init_method,
        rank=run.place.rank,
        world_size=run.place.ranks,
        timeout=datetime.timedelta(seconds=run.options.timeout + _LATER_THAN_WATCHDOG_S),
    )


def _backend(run: Run) -> str:
    return "nccl" if run.on_gpu else "gloo"  # torch calls RCCL nccl, too


def _group(run: Run, where: str) -> Group:
    """The ranks that this rank communicates with. Groups of nodes are made once, at their first use."""
    nodes = sorted(set(run.hosts))
    if where == "network" or len(nodes) == 1:
        return Group(list(range(run.place.ranks)), None)
    own = run.hosts[run.place.rank]
    by_node = {node: [rank for rank, host in enumerate(run.hosts) if host == node] for node in nodes}
    if run.node_group is None:
        # torch wants every rank to make every group
        groups = {node: run.torch.distributed.new_group(members) for node, members in by_node.items()}
        run.node_group = groups[own]
    return Group(by_node[own], run.node_group)


def _bandwidths(run: Run, group: Group, exchange: type[Exchange]) -> tuple[list[Item], int]:
    """The figures of each size, and how many words were wrong."""
    room = _smallest(run, group, _room(run))
    rows: list[Item] = []
    wrong, seconds_per_byte = 0, 0.0
    for size in SIZES[run.kind]:
        warm_up, repeats = _FIRST_COUNTS
        if rows:
            predicted = seconds_per_byte * size
            warm_up = _count(_WARM_UP_S, predicted, 2, 50)
            repeats = _count(_SAMPLE_S, predicted, 8, 40)
            if size > room or (warm_up + repeats) * predicted > LIMIT_S:
                break
        array = exchange(run, group, size)
        array.fill()
        array.run()
        wrong += array.wrong()
        timing = _timed(run, group, array, warm_up, repeats)
        amount = 1e-9 * size * array.factor()
        rows.append({"size": size, **rate("gb_per_s", amount, timing)})
        seconds_per_byte = _largest(run, group, sorted(timing)[len(timing) // 2]) / size
        del array
    return rows, wrong


def _count(wanted_s: float, once_s: float, least: int, most: int) -> int:
    """How often to repeat something that takes ``once_s``. The same numbers return the same count."""
    return int(max(least, min(most, wanted_s / max(once_s, 1e-9))))


def _room(run: Run) -> float:
    """The largest array that this rank can have: an exchange needs about three of its size."""
    return run.torch.cuda.mem_get_info(run.index)[0] / 8 if run.on_gpu else float(SIZES["cpu"][-1])


def _timed(run: Run, group: Group, array: Exchange, warm_up: int, repeats: int) -> Timing:
    """Seconds of each exchange. All ranks begin each one together, with fresh data.

    On a GPU the copy that fills the array runs while the host launches the exchange, so that the time of the
    launch is not measured.
    """
    for _ in range(warm_up):
        array.fill()
        array.run()
    if not run.on_gpu:
        return Timing(_samples(run, group, array, repeats))
    with monitor(run, run.index) as watch:
        samples = _samples(run, group, array, repeats)
    return Timing(samples, state=watch.state())


def _samples(run: Run, group: Group, array: Exchange, repeats: int) -> list[float]:
    samples = []
    for _ in range(repeats):
        _barrier(run, group)
        array.fill()
        samples.append(_seconds(run, array.run))
    return samples


def _seconds(run: Run, function: Callable[[], Any]) -> float:
    """Seconds of a function: on a GPU between two of its events."""
    return gpu_seconds(run, function) if run.on_gpu else clock_seconds(function)


def _latencies(run: Run, group: Group) -> list[Item]:
    """Microseconds of an all-reduce of small arrays, one call after the other as nccl-tests has them.

    Zeros: the content does not matter here, and stays finite.
    """
    calls = 20 if run.on_gpu else 4
    out = []
    for size in SMALL_SIZES:
        tensor = run.torch.zeros(size // 4, dtype=run.torch.float32, device=run.device)

        def several() -> None:
            for _ in range(calls):
                run.torch.distributed.all_reduce(tensor, group=group.handle)  # noqa: B023 - called here only

        several()
        samples = []
        for _ in range(5):
            _barrier(run, group)
            samples.append(1e6 * _seconds(run, several) / calls)
        out.append({"size": size, "median_us": sorted(samples)[2]})
    return out


def _barrier(run: Run, group: Group) -> None:
    """Waits until all ranks of the group are here, and their devices have finished their work.

    Not torch's: with NCCL that one guesses the device of a rank.
    """
    _largest(run, group, 0.0)


def _largest(run: Run, group: Group, value: float) -> float:
    """The largest value of all ranks of the group."""
    distributed = run.torch.distributed
    tensor = run.torch.tensor([value], dtype=run.torch.float64, device=run.device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=group.handle)
    return float(tensor.item())


def _smallest(run: Run, group: Group, value: float) -> float:
    return -_largest(run, group, -value)


def _shared_algorithm(run: Run, group: Group, size: int) -> str:
    """The algorithm by which NCCL summed an array; its log has it on the first rank of a group only."""
    number = ALGORITHMS.index(algorithm(run.nccl_log, size))
    return ALGORITHMS[int(_largest(run, group, float(number)))]


def _nccl_log() -> str:
    """The log that NCCL writes for this process (see ``ranks/child.py``)."""
    pattern = os.environ.get("NCCL_DEBUG_FILE", "").replace("%h", "*").replace("%p", str(os.getpid()))
    text = ""
    for path in glob.glob(pattern):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(4 << 20)
    return text
