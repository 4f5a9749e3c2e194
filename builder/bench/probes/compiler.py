"""Probe of torch.compile, which needs a compiler, headers and Triton inside the image."""

from __future__ import annotations

import os
import re
import sys
import tempfile

from ..core import Run, skip, warn
from ..machine.gpu import compute_mode
from ..machine.process import run_limited

#: Seconds. A first compilation takes 5 to 30.
LIMIT_S = 60.0
#: The last line of its output: seconds of the first call, whether the result was right.
_PROGRAM = """
import sys, time
import torch, torch._dynamo
torch._dynamo.config.suppress_errors = False
def work(x):
    return x * 2 + 1
x = torch.arange(4096.0, device=sys.argv[1])
started = time.perf_counter()
found = torch.compile(work, fullgraph=True)(x).cpu()
print()
print("compiled", time.perf_counter() - started, bool((found == work(x).cpu()).all()))
"""
#: Words of a failure that does not concern the image, and what it means.
_ELSEWHERE = (
    (r"devices are busy or unavailable|DevicesUnavailable", "the GPU serves one process only"),
    (
        r"CUDA out of memory|HIP out of memory|OutOfMemoryError",
        "the GPU has no memory left for another process",
    ),
    (r"too old to be supported by the triton", "Triton does not support this GPU"),
)
#: Words of a failure, and what to do.
_ADVICE = (
    (
        r"is not supported on Python|not supported in this version of Python",
        "use an older Python in the environment, or a newer torch",
    ),
    (
        r"fatal error: Python\.h",
        "the image has no Python headers: conda's python has them; for Debian's, add python3-dev to "
        "base_packages",
    ),
    (
        r"Failed to find C compiler|No working C\+\+ compiler|InvalidCxxCompiler",
        "the image has no C compiler: add gcc to the environment (conda), or gcc and libc6-dev to "
        "base_packages, or set CC",
    ),
    (
        r"cannot find -lcuda|libcuda\.so cannot found",
        "the linker finds no libcuda.so: set TRITON_LIBCUDA_PATH to the folder with libcuda.so.1",
    ),
    (
        r"Cannot find a working triton|TritonMissing|No module named 'triton'",
        "the image has no Triton: add triton to the environment (pip's torch for GPUs needs it)",
    ),
    (
        r"Operation not permitted|failed to map segment|Permission denied",
        "compiled code cannot run or be written: set TMPDIR to a folder on a file system mounted with exec",
    ),
)


def probe_compile(run: Run) -> str:
    """torch.compile compiles a small function for the GPU, in a process of its own."""
    torch = run.need_torch
    if not run.own_gpus:
        raise skip("no GPU")
    if run.place.local_rank:
        raise skip("the first rank of the node tries it")
    if not hasattr(torch, "compile"):
        raise skip(f"torch {torch.__version__} has no torch.compile")
    if compute_mode(run, run.index) in ("exclusive_process", "prohibited"):
        raise skip("the GPU allows one process only")

    with tempfile.TemporaryDirectory(prefix="compile-", dir=run.folder or None) as folder:
        variables = {
            **os.environ,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of processes
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
        }
        with open(os.path.join(folder, "output"), "w+b") as output:
            code = run_limited([sys.executable, "-c", _PROGRAM, run.device], output, LIMIT_S, variables)
            output.seek(0)
            text = output.read(1 << 20).decode("utf-8", "replace")
    if code is None:
        advice = "the first steps of compiled models take minutes: check the load of this node"
        raise warn(f"did not end within {LIMIT_S:.0f} s", advice)
    done = re.search(r"(?m)^compiled ([\d.]+) (True|False)$", text)
    if done is None:
        raise _failure(text, code)
    if done[2] == "False":
        raise warn("a compiled function returns wrong numbers", "use another version of torch or Triton")
    return f"compiled in {float(done[1]):.1f} s"


def _failure(text: str, code: int) -> Exception:
    for words, meaning in _ELSEWHERE:
        if re.search(words, text):
            return skip(meaning)
    for words, advice in _ADVICE:
        if re.search(words, text):
            return warn(_line_with(words, text), advice)
    seen = _line_with(r"\w(Error|Exception)\b", text) or f"the process ended with exit code {code}"
    return warn(
        seen, "models run without torch.compile; to see the whole message, compile a model in the image"
    )


def _line_with(words: str, text: str) -> str:
    """The last line with these words, shortened; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if re.search(words, line)]
    return lines[-1][:300] if lines else ""
