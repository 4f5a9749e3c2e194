"""Published reference figures of GPUs: the content of reference.yml."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml

from builder.smoke.values import number

#: Names that ROCm reports if its table of device names is missing.
_NAMELESS = ("", "AMD Radeon Graphics", "AMD Instinct Graphics")


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure."""

    value: float
    """TFLOP/s or GB/s, see reference.yml."""
    kind: str
    """``achieved``: a measured value; ``acceptance``: the vendor's lower limit for accepting a machine."""
    source: str
    """A key of :attr:`References.sources`."""
    gpus: int = 0
    """For an all-reduce: the number of GPUs that took part."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of reference.yml."""

    id: str
    name: str
    match: re.Pattern[str]
    """Matches the whole name that torch reports."""
    architecture: str
    memory_gib: tuple[float, float]
    """The smallest and the largest memory size that this GPU reports, in GiB."""
    multiprocessors: int
    peak: Mapping[str, float]
    """Theoretical peaks in TFLOP/s or GB/s, by ``fp32``, ``bf16``, ``memory`` and so on."""
    peak_source: str
    achieved: Mapping[str, Figure] = field(default_factory=dict)
    """Published figures by the same keys."""


@dataclass(frozen=True, slots=True)
class References:
    """The content of reference.yml."""

    devices: tuple[Device, ...]
    sources: Mapping[str, tuple[str, str]]
    """Title and address of each source."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> References:
        """Reads the loaded file.

        The file is part of builder: an error in it is a bug, and any exception may be raised.
        """
        devices = tuple(_parse_device(item) for item in data["devices"])
        sources = {key: (item["title"], item["url"]) for key, item in data["sources"].items()}
        return cls(devices, sources)

    def find(self, facts: Mapping[str, Any]) -> Device | None:
        """The entry of a GPU, or None if it is unknown.

        Searches by name and memory size; by architecture, memory size and compute units if ROCm reports no
        name.

        Args:
            facts: an element of a report's ``facts.devices``.
        """
        name = str(facts.get("name", "")).strip()
        memory = number(facts, "memory_bytes")
        gib = memory / 2**30 if memory else None
        for device in self.devices:
            if device.match.fullmatch(name) and (gib is None or _has_memory(device, gib)):
                return device
        if name not in _NAMELESS or gib is None:
            return None
        for device in self.devices:
            same_architecture = facts.get("architecture") == device.architecture
            same_units = facts.get("multiprocessors") == device.multiprocessors
            if same_architecture and same_units and _has_memory(device, gib):
                return device
        return None

    def title(self, source: str) -> str:
        """The title of a source; its key if it is not listed."""
        return self.sources.get(source, (source, ""))[0]


def _has_memory(device: Device, gib: float) -> bool:
    low, high = device.memory_gib
    return low <= gib <= high


def _parse_device(item: Mapping[str, Any]) -> Device:
    low, high = item["memory_gib"]
    return Device(
        id=item["id"],
        name=item["name"],
        match=re.compile(item["match"]),
        architecture=item["architecture"],
        memory_gib=(low, high),
        multiprocessors=item["multiprocessors"],
        peak={key: float(value) for key, value in item["peak"].items() if key != "source"},
        peak_source=str(item["peak"]["source"]),
        achieved={key: _parse_figure(figure) for key, figure in item["achieved"].items()},
    )


def _parse_figure(item: Mapping[str, Any]) -> Figure:
    return Figure(
        value=float(item["value"]),
        kind=item.get("kind", "achieved"),
        source=item["source"],
        gpus=item.get("gpus", 0),
        note=item.get("note", ""),
    )


@functools.cache
def references() -> References:
    """The reference figures that are part of builder."""
    text = resources.files("builder.smoke").joinpath("reference.yml").read_text("utf-8")
    return References.parse(yaml.safe_load(text))
