"""Limits of memory and file size, for programs and libraries that read what a server sends."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import BuilderError

#: Bytes of memory of a program, without the files that it maps. uv takes 0.4 GiB for 260 packages.
MAX_MEMORY = 4 << 30
#: Bytes of a file that a program writes. uv downloads a wheel whose server knows no ranges.
MAX_FILE = 16 << 30
#: Bytes of a file that a library writes in this process, such as an index without its compression.
MAX_INDEX = 2 << 30


def limited(*command: str) -> list[str]:
    """Return the command line of a program with these limits, unless the host has lower ones.

    To write more than :data:`MAX_FILE` is an error (EFBIG), because the signal is ignored.
    """
    limits = f"ulimit -d {MAX_MEMORY >> 10}; ulimit -f {MAX_FILE >> 9}"  # in units of POSIX
    return ["sh", "-c", f'trap "" XFSZ; {{ {limits}; }} 2>/dev/null; exec "$@"', "sh", *command]


@contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow beyond :data:`MAX_INDEX` in this process, until the end of the block.

    To write more is an error (EFBIG), because Python ignores the signal. Blocks of two threads must
    not overlap.
    """
    kind = resource.RLIMIT_FSIZE
    limits = soft, hard = resource.getrlimit(kind)
    most = MAX_INDEX if soft == resource.RLIM_INFINITY else min(soft, MAX_INDEX)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, limits)


def run_tool(
    command: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float, late: BuilderError
) -> subprocess.CompletedProcess[str]:
    """Run a command with limits in a folder, and return its exit code and output.

    Args:
        command: the program and its arguments.
        folder: the working folder.
        env: all its variables.
        limit_s: seconds after which it is killed.
        late: is then raised.
    """
    try:
        return subprocess.run(
            limited(*command), cwd=folder, env=env, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise late from None
