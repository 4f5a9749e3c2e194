"""The collectives that are measured: their arrays, and what the result must be."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core import Run


class Group(NamedTuple):
    """Ranks that communicate."""

    members: list[int]
    #: torch's process group; None: all ranks.
    handle: Any


def weight(rank: int) -> int:
    """By what a rank multiplies the pattern. Small, so that float32 holds the sum of 1024 ranks exactly."""
    return rank % 7 + 1


class Exchange:
    """A collective over ``size`` bytes: the array that is summed, gathered or scattered, as a whole.

    Rank r contributes ``weight(r)`` times a pattern of small integers.
    """

    #: This rank's contribution.
    source: Any

    def __init__(self, run: Run, group: Group, size: int) -> None:
        self.distributed = run.torch.distributed
        self.torch = run.torch
        self.group = group
        self.count = len(group.members)
        #: float32 words of one rank's part.
        self.part = size // 4 // self.count
        self.position = group.members.index(run.place.rank)
        self.weight = weight(run.place.rank)
        self.total = sum(weight(member) for member in group.members)
        words = run.torch.arange(size // 4, dtype=run.torch.float32, device=run.device)
        self.pattern = words.remainder_(100)

    def factor(self) -> float:
        """Bus bandwidth over (bytes / time), as nccl-tests defines it."""
        return (self.count - 1) / self.count

    def fill(self) -> None:
        """Writes this rank's contribution."""
        self.torch.mul(self.pattern, self.weight, out=self.source)

    def run(self) -> None:
        """Communicates. On a GPU it returns before the end."""
        raise NotImplementedError

    def wrong(self) -> int:
        """How many words of the result are wrong. Overwrites the result."""
        raise NotImplementedError

    def _differing(self, result: Any, pattern: Any, factor: int) -> int:
        return int(self.torch.count_nonzero(result.sub_(pattern, alpha=factor)).item())


class AllReduce(Exchange):
    """Sums an array over all ranks."""

    def __init__(self, run: Run, group: Group, size: int) -> None:
        super().__init__(run, group, size)
        self.source = run.torch.empty_like(self.pattern)

    def factor(self) -> float:
        return 2 * (self.count - 1) / self.count

    def run(self) -> None:
        self.distributed.all_reduce(self.source, group=self.group.handle)

    def wrong(self) -> int:
        return self._differing(self.source, self.pattern, self.total)


class AllGather(Exchange):
    """Every rank receives the parts of all ranks."""

    def __init__(self, run: Run, group: Group, size: int) -> None:
        super().__init__(run, group, size)
        self.pattern = self.pattern[: self.part]
        self.source = run.torch.empty_like(self.pattern)
        self.target = run.torch.zeros(self.part * self.count, dtype=run.torch.float32, device=run.device)
        self.gather: Any = getattr(self.distributed, "all_gather_single", None)  # from torch 2.13 on
        self.gather = self.gather or self.distributed.all_gather_into_tensor

    def run(self) -> None:
        self.gather(self.target, self.source, group=self.group.handle)

    def wrong(self) -> int:
        parts = zip(self.target.split(self.part), self.group.members)
        return sum(self._differing(part, self.pattern, weight(member)) for part, member in parts)


class ReduceScatter(Exchange):
    """Sums an array over all ranks; every rank receives its part of the sum."""

    def __init__(self, run: Run, group: Group, size: int) -> None:
        super().__init__(run, group, size)
        self.pattern = self.pattern[: self.part * self.count]
        self.source = run.torch.empty_like(self.pattern)
        self.target = run.torch.zeros(self.part, dtype=run.torch.float32, device=run.device)
        self.scatter: Any = getattr(self.distributed, "reduce_scatter_single", None)  # from torch 2.13 on
        self.scatter = self.scatter or self.distributed.reduce_scatter_tensor

    def run(self) -> None:
        self.scatter(self.target, self.source, group=self.group.handle)

    def wrong(self) -> int:
        own = self.pattern.split(self.part)[self.position]
        return self._differing(self.target, own, self.total)


EXCHANGES: dict[str, type[Exchange]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reducescatter": ReduceScatter,
}
