"""torch.compile: what an image lacks for it, from the messages of torch and Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from builder.bench.core import Place
from builder.bench.probes import compiler
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask

Print = Callable[..., list[Any]]


def with_compile(build: str = "CUDA", **more: Any) -> Any:
    torch = fake_torch(build, **more)
    torch.compile = lambda function: function
    return torch


@pytest.fixture
def prints(monkeypatch: pytest.MonkeyPatch) -> Print:
    """``prints(text, code)``: the process that compiles prints this. Returns the calls."""
    calls: list[Any] = []

    def use(text: str, code: int | None = 1) -> list[Any]:
        def run(
            command: Sequence[str], output: IO[bytes], limit_s: float, variables: Mapping[str, str]
        ) -> int | None:
            calls.append((command, variables))
            output.write(text.encode())
            return code

        monkeypatch.setattr(compiler, "run_limited", run)
        return calls

    return use


def test_pass(prints: Print) -> None:
    """It has caches of its own: what an earlier run has compiled proves nothing."""
    calls = prints("a warning\n\ncompiled 6.25 True\n", 0)
    found = ask("torch.compile", with_compile(), expect="nvidia")
    assert (found.status, found.seen) == ("pass", "compiled in 6.2 s")
    ((command, variables),) = calls
    assert command[-1] == "cuda:0" and "fullgraph=True" in command[-2]
    assert not Path(variables["TRITON_CACHE_DIR"]).exists()
    assert variables["TORCHINDUCTOR_COMPILE_THREADS"] == "1" and variables["PATH"]


@pytest.mark.parametrize(
    ("text", "seen", "advice"),
    [
        (
            "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. "
            "Please specify via CC environment variable.\n\nSet TORCHDYNAMO_VERBOSE=1",
            "Failed to find C compiler",
            "add gcc to the environment",
        ),
        (
            "/tmp/x/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory\n"
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc']' returned non-zero exit status 1.",
            "cuda_utils.c:6:10: fatal error: Python.h",
            "python3-dev",
        ),
        (
            "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the "
            "package is not installed or it is too old.",
            "Cannot find a working triton",
            "add triton",
        ),
        (
            "RuntimeError: Dynamo is not supported on Python 3.12+",
            "Dynamo is not supported on Python 3.12+",
            "an older Python",
        ),
        ("/usr/bin/ld: cannot find -lcuda: No such file", "cannot find -lcuda", "TRITON_LIBCUDA_PATH"),
        ("ImportError: x.so: failed to map segment from shared object", "failed to map", "set TMPDIR"),
        ("a\nSomeError: odd\nhint: no", "SomeError: odd", "without torch.compile"),
        ("", "the process ended with exit code 1", "without torch.compile"),
        ("compiled 1.5 False", "wrong numbers", "another version"),
    ],
)
def test_warnings(prints: Print, text: str, seen: str, advice: str) -> None:
    """What is missing is a warning: images run without torch.compile."""
    prints(text)
    found = ask("torch.compile", with_compile(), expect="nvidia")
    assert found.status == "warn" and seen in found.seen and advice in found.advice


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: Found Tesla P100 which is too old to be supported by the triton GPU compiler",
    ],
)
def test_not_the_image(prints: Print, text: str) -> None:
    """A GPU that does not allow it says nothing about the image."""
    prints(text)
    assert ask("torch.compile", with_compile(), expect="nvidia").status == "skip"


def test_time_limit(prints: Print) -> None:
    prints("", None)
    found = ask("torch.compile", with_compile(), expect="nvidia")
    assert (found.status, found.seen) == ("warn", "did not end within 60 s")


def test_skipped(prints: Print) -> None:
    """It needs a GPU and torch 2; one rank of a node is enough."""
    calls = prints("")
    assert ask("torch.compile", with_compile(devices=0), expect="none").seen == "no GPU"
    assert ask("torch.compile", fake_torch("CUDA"), expect="nvidia").seen == "torch 2.9 has no torch.compile"
    place = Place(rank=1, ranks=2, local_rank=1, local_ranks=2)
    assert ask("torch.compile", with_compile(devices=2), place, expect="nvidia").status == "skip"
    assert calls == []
