"""Published reference figures of GPUs: the content of reference.yml."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from builder.core.datafiles import table
from builder.core.text import parse_bytes

from .limits import Limits
from .values import number

#: Names that ROCm reports if its table of device names is missing.
_NAMELESS = ("", "AMD Radeon Graphics", "AMD Instinct Graphics")


class _ReferenceModel(BaseModel):
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class PublishedFigure(_ReferenceModel):
    """A published figure. ``torch``, ``driver``, ``date`` and ``note`` are for readers only."""

    value: float
    """TFLOP/s or GB/s, see reference.yml."""
    kind: str = "achieved"
    """``achieved``: somebody measured it; ``acceptance``: the lower limit of a vendor or a site for
    accepting a machine."""
    source: str
    """A key of :attr:`References.sources`."""
    size: str = ""
    """What was measured: ``8192`` or ``1024x15360x4096`` for a product, ``16 GiB`` for an array."""
    gpus: int = 0
    """For an all-reduce: the number of GPUs that took part."""
    algorithm: str = ""
    """For an all-reduce: ``nvls`` or ``ring``; empty if the source does not say."""
    limits: Limits | None = None
    """Fractions below which a value warns and fails; None: those of ``limits.py``."""

    @property
    def bytes(self) -> int:
        """The bytes of the array of an all-reduce; 0 if they are not known."""
        return parse_bytes(self.size) or 0


class Device(_ReferenceModel):
    """A GPU of reference.yml."""

    id: str
    name: str
    match: re.Pattern[str]
    """Matches the whole name that torch reports."""
    architecture: str
    memory_gib: tuple[float, float]
    """The smallest and the largest memory size that this GPU reports, in GiB."""
    multiprocessors: int
    """0 if the number is not known."""
    peak: dict[str, float]
    """Theoretical peaks in TFLOP/s or GB/s (``fp32``, ``bf16``, ``memory``...)."""
    peak_source: str
    """A key of :attr:`References.sources`."""
    achieved: dict[str, tuple[PublishedFigure, ...]]
    """Published figures of products and ``copy``, ``triad``, ``transfer``, ``allreduce``: one, or
    all-reduce by size, number of GPUs and algorithm."""

    @property
    def is_amd(self) -> bool:
        return self.architecture.startswith("gfx")

    @property
    def boosts(self) -> bool:
        """Whether it runs above its rated clock, so that it exceeds its peaks."""
        return "GeForce" in self.name or "Radeon" in self.name


class Source(_ReferenceModel):
    """A publication."""

    title: str
    url: str = ""
    """Empty: builder's own measurement, which docs/tried.md describes."""


class References(_ReferenceModel):
    """The content of reference.yml."""

    devices: tuple[Device, ...]
    sources: dict[str, Source]

    def find(self, facts: Mapping[str, Any]) -> Device | None:
        """Return the entry of a GPU; None if it is unknown, as a MIG slice is.

        Searches by name, memory size and multiprocessors, as far as they are reported: several GPUs
        may share a name. If ROCm reports no name, searches by architecture, memory size and
        multiprocessors.

        Args:
            facts: an element of a report's ``facts.devices``.
        """
        found = [d for d in self.devices if _is_named(d, facts) and _fits(d, facts)]
        return found[0] if len(found) == 1 else None  # of several, the GPU could be any

    def title(self, source: str) -> str:
        """Return the title of a source; its key if it is not listed."""
        return self.sources[source].title if source in self.sources else source


def _is_named(device: Device, facts: Mapping[str, Any]) -> bool:
    """Return whether the name of a GPU is that of a device; without a name its architecture."""
    name = str(facts.get("name", "")).strip()
    if name not in _NAMELESS:
        return device.match.fullmatch(name) is not None
    has_size = number(facts, "memory_bytes") and number(facts, "multiprocessors")
    return bool(has_size) and facts.get("architecture") == device.architecture


def _fits(device: Device, facts: Mapping[str, Any]) -> bool:
    """Return whether memory and multiprocessors are those of a device, as far as they are known."""
    memory, units = number(facts, "memory_bytes"), number(facts, "multiprocessors")
    if memory and not device.memory_gib[0] <= memory / 2**30 <= device.memory_gib[1]:
        return False
    return not units or not device.multiprocessors or units == device.multiprocessors


@functools.cache
def references() -> References:
    """Return the reference figures that are part of builder."""
    return References.model_validate(table(__file__, "reference.yml"))
