"""Ports of 127.0.0.1 for the servers that tests start."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

import pytest

#: Ports that were returned: their servers may listen later, or again.
_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Returns consecutive free ports, below those that the kernel gives to clients.

    No port is returned twice, and each worker of pytest has 3000 ports of its own: the first 1200 for jobs of
    Slurm, whose ports builder.bench takes from their numbers, and 1800 for servers.
    """
    for _ in range(200):
        first = secrets.randbelow(1800 - count) + 21200 + 3000 * worker()
        if _GIVEN.intersection(range(first, first + count)):
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            _GIVEN.update(range(first, first + count))
            return list(range(first, first + count))
    pytest.fail("no free ports")


def worker() -> int:
    """The number of this worker of pytest; 0 without pytest-xdist. Beyond four, numbers are used again."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
