"""Hands the images of a workload to ``benchmarks.start``, which measures pulls, starts and imports."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import parts


@dataclass(frozen=True)
class StartContext:
    """What is there when starts are measured."""

    registry: parts.Registry
    images: Mapping[str, str]
    """References in the registry by name; ``NAME, bumped`` is ``NAME`` after a bump."""
    sifs: Mapping[str, Path]
    module: str
    """What is imported."""
    work: Path
    quick: bool


def measure_starts(context: StartContext) -> list[dict[str, Any]]:
    """The rows of ``benchmarks.start``; none if there is no such module."""
    if importlib.util.find_spec("benchmarks.start") is None:
        return []
    rows: list[dict[str, Any]] = importlib.import_module("benchmarks.start").measure_start(context)
    return rows
