"""Collectives on a stand-in for a node's GPUs: sizes, repeats and fresh data, and what the report holds."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.core import Measurement, RankPosition, Run
from builder.bench.examine import perform
from builder.bench.machine.network import algorithm
from builder.bench.measurements import MEASUREMENTS
from tests.support.fake_cuda import FakeGpu
from tests.support.smoke import make_run

GIB = 1 << 30
NVLS = "h:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo NVLS proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"


class Words:
    """A tensor that only knows its length."""

    def __init__(self, node: Node, count: int, value: float = 1.0) -> None:
        self.node, self.count, self.value = node, count, value

    def __getitem__(self, part: slice) -> Words:
        return Words(self.node, len(range(*part.indices(self.count))))

    def remainder_(self, factor: int) -> Words:
        return self

    def sub_(self, other: Words, alpha: int = 1) -> Words:
        return Words(self.node, self.count, self.node.wrong)

    def split(self, size: int) -> list[Words]:
        return [Words(self.node, size) for _ in range(self.count // size)]

    def item(self) -> float:
        self.node.gpu.synchronize()
        return self.value


class Node:
    """Rank 0 of several GPUs, which all take the same time; ``torch`` is what the rank sees of it."""

    def __init__(self, ranks: int = 8, gb_per_s: float = 450.0, free: int = 140 * GIB) -> None:
        self.ranks, self.gb_per_s = ranks, gb_per_s
        self.gpu = FakeGpu()
        #: Free memory of another rank's GPU.
        self.other_free = free
        self.wrong = 0
        #: What the rank does, in order.
        self.steps: list[str] = []
        self.groups: list[list[int]] = []
        self.torch = self._torch()

    def _torch(self) -> Any:
        def words(count: int, **_: Any) -> Words:
            return Words(self, count)

        def zeros(count: int, **_: Any) -> Words:
            self.steps.append("zero")
            return Words(self, count)

        def mul(pattern: Words, factor: int, out: Words) -> None:
            self.steps.append("fill")
            self.gpu.launch("fill", 8 * pattern.count / 3e12)

        distributed = SimpleNamespace(
            ReduceOp=SimpleNamespace(MAX="max"),
            is_initialized=lambda: True,
            new_group=lambda members: self.groups.append(members) or len(self.groups),
            all_reduce=self._all_reduce,
        )
        return SimpleNamespace(
            cuda=self.gpu.cuda(), distributed=distributed, version=SimpleNamespace(cuda="12", hip=None),
            float32="f", float64="d", arange=words, zeros=zeros, mul=mul,
            empty_like=lambda other: Words(self, other.count),
            tensor=lambda values, **_: Words(self, 1, values[0]),
            count_nonzero=lambda tensor: Words(self, 1, tensor.value),
        )  # fmt: skip

    def _all_reduce(self, tensor: Words, op: str = "", group: Any = None) -> None:
        if op == "max":
            self.steps.append("agree")
            if tensor.value < -1:  # the free memory / 8 of a rank, negative
                tensor.value = max(tensor.value, -self.other_free / 8)
            self.gpu.launch("agree", 20e-6)
            return
        self._exchange(2 * 4 * tensor.count)

    def _exchange(self, moved: int) -> None:
        self.steps.append("exchange")
        bus = moved * (self.ranks - 1) / self.ranks
        self.gpu.launch("exchange", 20e-6 + bus / self.gb_per_s / 1e9)


def measurement(name: str) -> Measurement:
    return next(m for m in MEASUREMENTS if m.id == name)


def measure(node: Node, name: str = "allreduce.node", hosts: int = 1) -> Any:
    run = make_run(node.torch, RankPosition(0, node.ranks, 0, node.ranks // hosts), expect="nvidia")
    run.hosts = [f"n{rank * hosts // node.ranks}" for rank in range(node.ranks)]
    return look(run, name)


def look(run: Run, name: str) -> Any:
    return perform(name, lambda: measurement(name).look(run))


def sizes(item: Any) -> list[float]:
    return [row["size"] / GIB for row in item["sizes"]]


@pytest.mark.parametrize(
    ("node", "measured"),
    [
        (Node(free=16 * GIB), [1 / 64, 0.25, 1]),  # of another rank
        (Node(free=4 * GIB), [1 / 64, 0.25]),
        (Node(gb_per_s=2.0), [1 / 64, 0.25]),  # 1 GiB would take a second
        (Node(gb_per_s=0.1), [1 / 64]),
    ],
)
def test_sizes_that_do_not_fit(node: Node, measured: list[float]) -> None:
    item = measure(node)
    assert item["status"] == "pass" and sizes(item) == measured


class Plugin(Node):
    """NCCL with a plugin that opens a library of CUDA, and reports in NCCL's log if that fails."""

    def __init__(self, library: str, log: Path) -> None:
        super().__init__()
        self.library, self.log = library, log

    def _all_reduce(self, tensor: Words, op: str = "", group: Any = None) -> None:
        try:
            ctypes.CDLL(self.library)
        except OSError as e:  # the message of dlopen
            name = str(e).replace(self.library, Path(self.library).name)
            # aws-ofi-nccl, src/nccl_ofi_cuda.cpp (2025-10)
            self.log.write_text(f"h:1:2 [0] NCCL WARN NET/OFI Failed to find CUDA Runtime library: {name}\n")
            raise RuntimeError("NCCL error: invalid usage\nmore") from None
        super()._all_reduce(tensor, op, group)


@pytest.mark.parametrize(
    ("file", "advice"),
    [("libcudart.so", "add cuda-cudart-dev"), ("libother.so", "NCCL_DEBUG=INFO prints more")],
)
def test_library_that_the_plugin_opens(
    file: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's exception names no cause: the plugin's message in the log does."""
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.log"))
    item = measure(Plugin(str(tmp_path / file), tmp_path / "nccl.log"))
    assert item["status"] == "fail" and advice in item["advice"], item


def test_fresh_data_and_a_common_start() -> None:
    """Ranks agree to begin before each sample, and sum what they have filled in, not zeros."""
    node = Node()
    assert measure(node)["status"] == "pass"
    last_fill = len(node.steps) - node.steps[::-1].index("fill")
    assert "zero" not in node.steps[:last_fill]  # after it come small arrays, whose content does not matter
    text = " ".join(node.steps).split("fill exchange agree")[-2]  # the samples of the last size
    assert text.strip() == ""
    assert node.steps.count("fill") > 4 * 8


def test_wrong_result() -> None:
    """A rank with a wrong result goes on as the others do, and fails at the end."""
    node = Node()
    node.wrong = 3
    item = measure(node)
    assert item["status"] == "fail" and "wrong: 12" in item["seen"] and not item["correctness"]["ok"]
    right = Node()
    measure(right)
    assert node.steps == right.steps


def test_all_ranks_first() -> None:
    """The second process group may hang (RCCL): the figure that plain DDP needs comes before it."""
    ids = [m.id for m in MEASUREMENTS if m.scope == "all"]
    assert ids[0] == "allreduce.network"
    node = Node()
    run = make_run(node.torch, RankPosition(0, 8, 0, 4), expect="nvidia")
    run.hosts = ["a"] * 4 + ["b"] * 4
    assert look(run, "allreduce.network")["status"] == "pass" and node.groups == []
    for name in ids[1:]:
        assert look(run, name)["status"] == "pass", name
    assert node.groups == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (NVLS, "nvls"),
        (
            "[0] NCCL INFO AllReduce: {size} Bytes -> Algo Ring proto SIMPLE channel{{Lo..Hi}}={{0..15}}",
            "ring",
        ),
        ("[0] NCCL INFO {size} Bytes -> Algo 1 proto 2 time 123.4", ""),
        ("AllReduce: {size} Bytes -> Algo NVLSTree proto SIMPLE", "nvls"),
        ("AllReduce: {size} Bytes -> Algo CollNetDirect proto SIMPLE", ""),
        ("AllReduce: 1{size} Bytes -> Algo Ring proto LL", ""),
        ("AllReduce: {size} Bytes -> Algo Tree proto LL\n" + NVLS, "nvls"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", ""),
    ],
)
def test_algorithm(log: str, expected: str) -> None:
    assert algorithm(log.format(size=4 * GIB), 4 * GIB) == expected
