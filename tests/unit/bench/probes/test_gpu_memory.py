"""The probe that writes a GPU's memory and reads it again, with small memories that are faulty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from builder.bench.probes import gpu_memory
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask_run, make_run

WORDS = 16


class Tensor:
    """Some words of a GPU's memory."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def sub_(self, other: Tensor) -> Tensor:
        self.words[:] = [a - b for a, b in zip(self.words, other.words, strict=True)]
        return self

    def __ne__(self, number: object) -> Tensor:  # type: ignore[override]
        return Tensor([int(word != number) for word in self.words])

    def sum(self) -> Any:
        return SimpleNamespace(item=lambda: sum(self.words))


@dataclass
class Memory:
    """The memory of a GPU that is free at first."""

    chunks: int
    fault: Callable[[list[list[int]]], None] = lambda written: None
    written: list[list[int]] = field(default_factory=list)
    emptied: int = 0

    def torch(self, build: str = "CUDA") -> Any:
        torch = fake_torch(build)
        torch.int64 = "int64"
        torch.arange = lambda count, dtype, device: Tensor(list(range(count)))
        torch.add = self.add
        torch.cuda.synchronize = lambda index: None
        torch.cuda.empty_cache = self.empty
        torch.cuda.mem_get_info = lambda index: (self.chunks * WORDS * 8, 1 << 40)
        return torch

    def add(self, numbers: Tensor, first: int) -> Tensor:
        if len(self.written) + 1 >= self.chunks:
            raise RuntimeError("CUDA out of memory. Tried to allocate 512 MiB")
        self.written.append([number + first for number in numbers.words])
        self.fault(self.written)
        return Tensor(self.written[-1])

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "CHUNK", WORDS)


def look(memory: Memory, **changes: Any) -> Any:
    torch = memory.torch(changes.pop("build", "CUDA"))
    for name, value in changes.items():
        setattr(torch.cuda.get_device_properties(0), name, value)
    return ask_run("gpu.memory", make_run(torch))


def test_nearly_all_of_it() -> None:
    """90 % of the free memory is written, and given back."""
    memory = Memory(100)
    found = look(memory)
    assert found.status == "pass" and found.seen.startswith("GPU 0: ")
    assert len(memory.written) == 89  # one more is needed to compare
    assert memory.emptied == 2


def stuck(written: list[list[int]]) -> None:
    """A bit of a word is always 1."""
    if len(written) > 7:
        written[7][3] |= 1 << 20


def alias(written: list[list[int]]) -> None:
    """Two addresses lead to the same words, so what is written later is read twice."""
    if len(written) > 60:
        written[20][:] = written[60]


@pytest.mark.parametrize(("fault", "wrong"), [(stuck, 1), (alias, WORDS)])
def test_faulty(fault: Callable[[list[list[int]]], None], wrong: int) -> None:
    found = look(Memory(100, fault))
    assert found.status == "fail" and found.seen == f"GPU 0: {wrong} of {89 * WORDS} words are not " + (
        "what was written"
    )


def test_left_out() -> None:
    """Filling a memory that others use would end their programs."""
    shared = make_run(Memory(100).torch())
    shared.shared_gpus.add(0)
    found = ask_run("gpu.memory", shared)
    assert found.status == "skip" and "another program" in found.seen
    assert "share the memory" in look(Memory(100), is_integrated=1).seen
    assert "share the memory" in look(Memory(100), build="HIP", name="AMD Instinct MI300A").seen
    assert "too little" in look(Memory(2)).seen
