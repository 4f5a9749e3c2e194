"""Environment files to lock files of conda-lock's format, and back. Nothing here imports a solver before one is needed."""

from __future__ import annotations

from builder.lock.environment import Environment, Spec, find_links, read_environment
from builder.lock.file import parse_lock, read_lock, write_lock
from builder.lock.inputs import stale_reasons
from builder.lock.solve import lock_target
from builder.model import DEBIAN_CHANNEL, FIND_LINKS

__all__ = [
    "DEBIAN_CHANNEL",
    "FIND_LINKS",
    "Environment",
    "Spec",
    "find_links",
    "lock_target",
    "parse_lock",
    "read_environment",
    "read_lock",
    "stale_reasons",
    "write_lock",
]
