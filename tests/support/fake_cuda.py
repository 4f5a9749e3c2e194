"""A stand-in for a GPU under torch.cuda, with a clock of its own: kernels take virtual seconds.

The host launches kernels and goes on; the GPU works them off in order:

    host    |launch|launch|launch|--- synchronize waits ---|
    GPU            |kernel    |kernel    |kernel           |

An interval between two events therefore includes the host's launch only if the GPU has nothing else to do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest


@dataclass
class FakeGpu:
    """A GPU, the host that launches its kernels, and their clocks, in seconds since the start."""

    launch_s: float = 10e-6
    """What the host needs for a launch."""
    first_s: float = 0.0
    """What the first call of a kernel needs on the host in addition, such as loading a library."""
    host_s: float = 0.0
    free_s: float = 0.0
    """When the GPU has finished all work that was launched."""
    launched: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def launch(self, name: str, seconds: float) -> None:
        """Launches a kernel that takes ``seconds``."""
        if name not in self._seen:
            self._seen.add(name)
            self.host_s += self.first_s
        self.host_s += self.launch_s
        self.launched.append(name)
        self.free_s = max(self.free_s, self.host_s) + seconds

    def synchronize(self, *_: Any) -> None:
        self.host_s = max(self.host_s, self.free_s)

    def cuda(self) -> Any:
        """What replaces ``torch.cuda``; add what else a test needs."""
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self, *_: Any) -> None:
                gpu.host_s += 1e-6
                self.at = max(gpu.free_s, gpu.host_s)

            def synchronize(self) -> None:
                gpu.host_s = max(gpu.host_s, self.at)

            def elapsed_time(self, end: Event) -> float:
                assert end.at <= gpu.host_s, "read before it has happened"
                return 1e3 * (end.at - self.at)

        return SimpleNamespace(
            Event=Event,
            synchronize=self.synchronize,
            set_device=lambda index: None,
            empty_cache=lambda: None,
            is_available=lambda: True,
            device_count=lambda: 1,
            mem_get_info=lambda index: (140 << 30, 141 << 30),
        )

    def use_clock(self, patch: pytest.MonkeyPatch) -> None:
        """The functions of ``time`` return the host's virtual time."""
        for name in ("perf_counter", "monotonic"):
            patch.setattr(time, name, lambda: self.host_s)


@dataclass
class FakeTensor:
    """A matrix without numbers."""

    shape: tuple[int, ...]
    dtype: str

    def to(self, *_: Any, dtype: str | None = None, **__: Any) -> FakeTensor:
        return FakeTensor(self.shape, dtype or self.dtype)

    def t(self) -> FakeTensor:
        return self

    def element_size(self) -> int:
        return 8 if self.dtype == "float64" else 2 if self.dtype.endswith("16") else 4

    def __len__(self) -> int:
        return self.shape[0]

    def __ne__(self, other: object) -> Any:
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 1))


def fake_gpu_torch(gpu: FakeGpu, flop_per_s: dict[str, float], architecture: str = "sm_90") -> Any:
    """A torch whose matrix products take virtual time on ``gpu``. Tests replace ``equal``, and the errors.

    Args:
        gpu: where the products run.
        flop_per_s: by torch's type; ``tf32`` for float32 where TF32 is allowed. "float16": 1e15.
        architecture: of the GPU.
    """
    switch = SimpleNamespace(allow_tf32=False)
    hip = architecture.startswith("gfx")

    def matmul(a: FakeTensor, b: FakeTensor) -> FakeTensor:
        n, dtype = a.shape[0], a.dtype
        kind = "tf32" if dtype == "float32" and switch.allow_tf32 and "tf32" in flop_per_s else dtype
        gpu.launch(f"{kind} {n}", 2.0 * n**3 / flop_per_s[kind])
        return FakeTensor(a.shape, kind)

    digits = "".join(c for c in architecture if c.isdigit())
    properties = SimpleNamespace(
        name="GPU", major=int(digits[:-1]), minor=int(digits[-1]), gcnArchName=architecture,
        total_memory=141 << 30, multi_processor_count=132,
    )  # fmt: skip
    cuda = gpu.cuda()
    cuda.get_device_properties = lambda index: properties
    types = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz")
    return SimpleNamespace(
        cuda=cuda, version=SimpleNamespace(cuda=None if hip else "12.8", hip="6.4" if hip else None),
        __version__="2.9", __file__="/opt/conda/lib/torch/__init__.py",
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=switch)),
        Generator=lambda device: SimpleNamespace(manual_seed=lambda seed: None),
        randn=lambda *shape, generator, device, dtype=None: FakeTensor(shape, dtype or "float32"),
        ones=lambda *shape, device: FakeTensor(shape, "float32"),
        matmul=matmul, equal=lambda a, b: a.dtype == b.dtype,
        _scaled_mm=lambda a, b, scale_a, scale_b, out_dtype: matmul(a, b),
        **{name: name for name in types},
    )  # fmt: skip
