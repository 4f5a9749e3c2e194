"""Communication between ranks: NCCL on NVIDIA GPUs, RCCL on AMD GPUs, gloo on CPUs."""

from __future__ import annotations

import datetime
import glob
import os
from functools import partial
from typing import Any, NamedTuple

from ..core import Item, Run, skip
from .accuracy import checked, require, wrong_results
from .timing import rate, timed

#: Bytes of the array that is summed.
REDUCTIONS = {"cpu": (1 << 20, 8 << 20), "gpu": (16 << 20, 256 << 20)}
#: All ranks must repeat equally often.
_REPEATS = 10
#: torch's timeout ends the process; the benchmark's watchdog must come first, because it reports more.
_LATER_THAN_WATCHDOG_S = 60


class Group(NamedTuple):
    """Ranks that sum an array together."""

    members: list[int]
    #: torch's process group; None: all ranks.
    handle: Any


def measure_all_reduce(run: Run, where: str) -> Item:
    """Sums an array over the ranks of a node (``node``) or of several nodes (``network``).

    Bus bandwidth as nccl-tests counts it: 2 (n - 1) / n times the bytes, over the time.
    """
    _check_ranks(run, where)
    _initialize(run)
    group = _group(run, where)
    if len(group.members) == 1:
        raise skip("one rank on this node")

    sums = [_sum(run, group, size) for size in REDUCTIONS[run.kind]]
    run.nccl_log = _nccl_log() or run.nccl_log

    shown = ("size", "median_gb_per_s", "mad_gb_per_s")
    return {
        **max(sums, key=lambda item: float(item["median_gb_per_s"])),
        "device": run.device,
        "members": len(group.members),
        "nodes": len(set(run.hosts)),
        "backend": _backend(run),
        "sizes": [{key: item[key] for key in shown} for item in sums],
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
    """The ranks that this rank sums with."""
    nodes = sorted(set(run.hosts))
    if where == "network" or len(nodes) == 1:
        return Group(list(range(run.place.ranks)), None)
    groups = {}
    for node in nodes:  # torch wants every rank to make every group
        members = [rank for rank, host in enumerate(run.hosts) if host == node]
        groups[node] = Group(members, run.torch.distributed.new_group(members))
    return groups[run.hosts[run.place.rank]]


def _sum(run: Run, group: Group, size: int) -> Item:
    """Checks and measures the sum of an array of ``size`` bytes. Rank r contributes r + 1 times a pattern."""
    torch, device = run.torch, run.device
    all_reduce = partial(torch.distributed.all_reduce, group=group.handle)
    n = len(group.members)

    pattern = torch.arange(size // 4, dtype=torch.float32, device=device).remainder_(1000)
    tensor = torch.empty_like(pattern)
    torch.mul(pattern, run.place.rank + 1, out=tensor)
    all_reduce(tensor)
    expected = float(sum(member + 1 for member in group.members))
    wrong = int((tensor != pattern * expected).sum().item())
    check = checked("words of the sum that are wrong", wrong, 0, wrong == 0)
    seen = f"{wrong} of {size // 4} words of the sum over {n} ranks are wrong"
    require(check, seen, wrong_results("network, NCCL, RCCL or a device"), device=device)

    tensor.zero_()
    seconds = timed(run, partial(all_reduce, tensor), exactly=_REPEATS)
    return {"size": size, **rate("gb_per_s", 2e-9 * size * (n - 1) / n, seconds), **check}


def _nccl_log() -> str:
    """The log that NCCL writes for this process (see ``ranks/child.py``)."""
    pattern = os.environ.get("NCCL_DEBUG_FILE", "").replace("%h", "*").replace("%p", str(os.getpid()))
    text = ""
    for path in glob.glob(pattern):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read(1 << 20)
    return text
