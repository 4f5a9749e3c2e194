"""All-reduce between ranks: NCCL on NVIDIA GPUs, RCCL on AMD GPUs, gloo on CPUs.

Every decision that changes what a rank does next (sizes, repeats) is made with all ranks of its
group: a rank that does something else makes the others wait until the watchdog ends them. A wrong
result therefore ends no measurement; it is reported at the end.
"""

from __future__ import annotations

import datetime
import glob
import os
from typing import Any, NamedTuple

from ..core import Item, Run, fail, skip
from ..machine.monitor import monitor
from ..machine.network import ALGORITHMS, algorithm, without_cudart
from .accuracy import checked
from .timing import Batch, Timing, clock_seconds, rate

#: Bytes of the array, by kind of device. Published figures are those of 1 GiB and more.
SIZES = {"cpu": (1 << 20, 8 << 20), "gpu": (16 << 20, 256 << 20, 1 << 30, 4 << 30)}
#: A size that would take longer than this is left out.
LIMIT_S = 6.0
#: Seconds of samples per size, and their number.
_SAMPLE_S = 0.4
_LEAST, _MOST = 8, 40
#: torch's timeout ends the process; the benchmark's watchdog must come first, because it reports more.
_LATER_THAN_WATCHDOG_S = 60


class Group(NamedTuple):
    """Ranks that communicate."""

    members: list[int]
    #: torch's process group; None: all ranks.
    handle: Any


def weight(rank: int) -> int:
    """Return the factor of a rank's pattern. Small: float32 holds the sum of 1024 ranks exactly."""
    return rank % 7 + 1


class AllReduce:
    """An array that is summed over all ranks: rank r adds ``weight(r)`` times a pattern."""

    def __init__(self, run: Run, group: Group, size: int) -> None:
        self.torch = run.torch
        self.group = group
        self.weight = weight(run.place.rank)
        words = run.torch.arange(size // 4, dtype=run.torch.float32, device=run.device)
        self.pattern = words.remainder_(100)
        self.array = run.torch.empty_like(self.pattern)

    def fill(self) -> None:
        """Write this rank's contribution."""
        self.torch.mul(self.pattern, self.weight, out=self.array)

    def run(self) -> None:
        """Communicate. On a GPU it returns before the end."""
        self.torch.distributed.all_reduce(self.array, group=self.group.handle)

    def wrong(self) -> int:
        """Return the number of words of the result that are wrong. Overwrites the result."""
        total = sum(weight(member) for member in self.group.members)
        return int(self.torch.count_nonzero(self.array.sub_(self.pattern, alpha=total)).item())


def measure_all_reduce(run: Run, where: str) -> Item:
    """Sum an array over the ranks of a node (``node``) or of several nodes (``network``).

    Bus bandwidth as nccl-tests counts it, for the best of several sizes.
    """
    _check_ranks(run, where)
    _initialize(run)
    group = _group(run, where)
    if len(group.members) == 1:
        raise skip("one rank on this node")

    try:
        rows, wrong = _bandwidths(run, group)
    except Exception:
        if advice := without_cudart(_nccl_log()):  # NCCL's exception names no cause
            raise fail("NCCL did not start", advice) from None
        raise
    run.nccl_log = _nccl_log() or run.nccl_log
    for row in rows:
        row["algorithm"] = _shared_algorithm(run, group, row["size"])

    best = max(rows, key=lambda row: float(row["median_gb_per_s"]))
    check = checked("words of the result that are wrong", wrong, 0, wrong == 0)
    return {
        **best,
        **check,
        "device": run.device,
        "members": len(group.members),
        "backend": _backend(run),
        "sizes": [{"size": row["size"], "median_gb_per_s": row["median_gb_per_s"]} for row in rows],
    }


def _check_ranks(run: Run, where: str) -> None:
    """Raise a skip, on all ranks, unless there are several nodes, or several ranks on a node."""
    if run.place.ranks == 1:
        raise skip("one rank; --all-gpus starts one per GPU, --ranks N several on CPUs")
    nodes = set(run.hosts)
    if where == "network" and len(nodes) == 1:
        raise skip("one node")
    if where == "node" and max(run.hosts.count(node) for node in nodes) == 1:
        raise skip("one rank on each node")


def _initialize(run: Run) -> None:
    """Connect all ranks. Every rank comes here at about the same time."""
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
    """Return the ranks that this rank communicates with. Each of them comes here once."""
    nodes = sorted(set(run.hosts))
    if where == "network" or len(nodes) == 1:
        return Group(list(range(run.place.ranks)), None)
    own = run.hosts[run.place.rank]
    ranks = list(enumerate(run.hosts))
    members = {node: [rank for rank, host in ranks if host == node] for node in nodes}
    # torch wants every rank to make every group
    groups = {node: run.torch.distributed.new_group(members[node]) for node in nodes}
    return Group(members[own], groups[own])


def _bandwidths(run: Run, group: Group) -> tuple[list[Item], int]:
    """Return the figures of each size, and the number of words that were wrong."""
    room = -_largest(run, group, -_room(run))
    count = len(group.members)
    rows: list[Item] = []
    wrong, seconds_per_byte = 0, 0.0
    for size in SIZES[run.kind]:
        repeats = _LEAST
        if rows:
            predicted = seconds_per_byte * size
            repeats = int(max(_LEAST, min(_MOST, _SAMPLE_S / max(predicted, 1e-9))))
            if size > room or 2 * repeats * predicted > LIMIT_S:
                break
        array = AllReduce(run, group, size)
        array.fill()
        array.run()
        wrong += array.wrong()
        timing = _timed(run, group, array, repeats)
        rows.append(rate("gb_per_s", 2e-9 * size * (count - 1) / count, timing, size=size))
        seconds_per_byte = _largest(run, group, sorted(timing)[len(timing) // 2]) / size
        del array
    return rows, wrong


def _room(run: Run) -> float:
    """Return the largest array that this rank can have: a sum needs about three of its size."""
    return run.torch.cuda.mem_get_info(run.index)[0] / 8 if run.on_gpu else float(SIZES["cpu"][-1])


def _timed(run: Run, group: Group, array: AllReduce, repeats: int) -> Timing:
    """Return the seconds of each sum, after as many for warm-up. All ranks begin each one together.

    Each one sums fresh data.

    On a GPU the copy that fills the array runs while the host launches the sum, so that the time of
    the launch is not measured.
    """
    for _ in range(repeats):
        array.fill()
        array.run()
    batch, samples = Batch(run, array.run), Timing()
    if run.on_gpu:
        batch.watch = monitor(run, run.index)
    for _ in range(repeats):
        # A barrier: not torch's, which guesses with NCCL the device of a rank.
        _largest(run, group, 0.0)
        array.fill()
        samples += batch.run(1, 1) if run.on_gpu else [clock_seconds(array.run)]
    samples.state = batch.watch.state()
    return samples


def _largest(run: Run, group: Group, value: float) -> float:
    """Return the largest value of all ranks of the group."""
    distributed = run.torch.distributed
    tensor = run.torch.tensor([value], dtype=run.torch.float64, device=run.device)
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=group.handle)
    return float(tensor.item())


def _shared_algorithm(run: Run, group: Group, size: int) -> str:
    """Return NCCL's algorithm for an array; only the first rank of a group has it in its log."""
    number = ALGORITHMS.index(algorithm(run.nccl_log, size))
    return ALGORITHMS[int(_largest(run, group, float(number)))]


def _nccl_log() -> str:
    """Return the log that NCCL writes for this process (see ``ranks/child.py``)."""
    pattern = os.environ.get("NCCL_DEBUG_FILE", "").replace("%h", "*")
    text = ""
    for path in glob.glob(pattern.replace("%p", str(os.getpid()))):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(4 << 20)
    return text
