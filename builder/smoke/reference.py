"""Published reference figures of GPUs: the content of reference.yml."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from builder.smoke.limits import Limits
from builder.smoke.values import number

#: Names that ROCm reports if its table of device names is missing.
_NAMELESS = ("", "AMD Radeon Graphics", "AMD Instinct Graphics")
#: The profile of a MIG slice: ``3g.40gb``, ``1g.10gb+me``; of a part of a slice: ``1c.3g.40gb``.
_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.(?P<gb>\d+)gb(?:[+.].*)?")
#: A slice has so many eighths of the memory. Its profile states the size in rounded GB.
_PARTS, _ROUNDING = 8, 0.3
#: Keys of figures that depend on the memory; what a slice has no part of its own of.
_OF_MEMORY, _SHARED = ("memory", "copy", "triad"), ("transfer", "allreduce")
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure. Its ``torch``, ``driver``, ``date`` and ``note`` are for readers of the file."""

    value: float
    """TFLOP/s or GB/s, see reference.yml."""
    kind: str
    """``achieved``: somebody measured it; ``measured``: this project did; ``acceptance``: the lower limit of
    a vendor or a site for accepting a machine."""
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
        """The size of the array; 0 if it is unknown or not a size in MiB or GiB."""
        count, _, unit = self.size.partition(" ")
        return int(float(count) * _UNITS[unit]) if unit in _UNITS else 0


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of reference.yml, or a MIG slice of one."""

    id: str
    name: str
    match: re.Pattern[str]
    """Matches the whole name that torch reports."""
    architecture: str
    memory_gib: tuple[float, float]
    """The smallest and the largest memory size that this GPU reports, in GiB."""
    multiprocessors: int
    """0 if the number is not known."""
    peak: Mapping[str, float]
    """Theoretical peaks in TFLOP/s or GB/s, by ``fp32``, ``bf16``, ``memory`` and so on."""
    peak_source: str
    achieved: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict)
    """Published figures, by the keys of products and ``copy``, ``triad``, ``transfer``, ``allreduce``."""
    profile: str = ""
    """The profile of a MIG slice, ``3g.40gb``; its figures are its share of the whole GPU's."""

    @property
    def is_amd(self) -> bool:
        return self.architecture.startswith("gfx")

    @property
    def boosts(self) -> bool:
        """Whether it runs above its rated clock, so that it exceeds its peaks."""
        return "GeForce" in self.name or "Radeon" in self.name


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
        """The entry of a GPU, with the figures of its share if it is a MIG slice; None if it is unknown.

        Searches by name, memory size and multiprocessors, as far as they are reported: several GPUs may share
        a name. If ROCm reports no name, searches by architecture, memory size and multiprocessors.

        Args:
            facts: an element of a report's ``facts.devices``.
        """
        name = str(facts.get("name", "")).strip()
        whole, _, profile = name.partition(" MIG ")
        if profile:
            return self._find_slice(whole, profile, facts)
        if name in _NAMELESS:
            return _only_one([device for device in self.devices if _is_nameless(device, facts)])
        named = [device for device in self.devices if device.match.fullmatch(name)]
        return _only_one([device for device in named if _fits(device, facts)])

    def _find_slice(self, name: str, profile: str, facts: Mapping[str, Any]) -> Device | None:
        """The share of a MIG slice, or None if it cannot be known."""
        matched = _PROFILE.fullmatch(profile)
        units = number(facts, "multiprocessors")
        if matched is None or not units:
            return None
        gb = int(matched["gb"])
        whole = [device for device in self.devices if device.match.fullmatch(name)]
        device = _only_one([device for device in whole if device.multiprocessors and _has_part(device, gb)])
        return _share(device, profile, units, gb) if device is not None else None

    def title(self, source: str) -> str:
        """The title of a source; its key if it is not listed."""
        return self.sources.get(source, (source, ""))[0]


def _only_one(devices: list[Device]) -> Device | None:
    """The only element; None if there are several: it is not known which of them the GPU is."""
    return devices[0] if len(devices) == 1 else None


def _fits(device: Device, facts: Mapping[str, Any]) -> bool:
    """Whether memory and multiprocessors are those of a device, as far as they are known."""
    memory, units = number(facts, "memory_bytes"), number(facts, "multiprocessors")
    if memory and not device.memory_gib[0] <= memory / 2**30 <= device.memory_gib[1]:
        return False
    return not units or not device.multiprocessors or units == device.multiprocessors


def _is_nameless(device: Device, facts: Mapping[str, Any]) -> bool:
    if not number(facts, "memory_bytes") or not number(facts, "multiprocessors"):
        return False
    return facts.get("architecture") == device.architecture and _fits(device, facts)


def _has_part(device: Device, gb: int) -> bool:
    """Whether a slice of so many GB has a whole number of the parts of a GPU's memory."""
    parts = _PARTS * gb / device.memory_gib[1]
    return round(parts) >= 1 and abs(parts - round(parts)) <= _ROUNDING


def _share(device: Device, profile: str, units: float, gb: int) -> Device | None:
    """A GPU's figures times the share of a slice.

    A slice has part of the multiprocessors (not n/7: 3g has 60 of 132) and part of the memory and its
    bandwidth. Few multiprocessors do not load all of that bandwidth, so the smaller share counts. What a
    slice shares with others, such as the link to the host, is left out.
    """
    compute = units / device.multiprocessors
    if compute > 1:
        return None
    memory = min(compute, round(_PARTS * gb / device.memory_gib[1]) / _PARTS)

    def factor(key: str) -> float:
        return memory if key in _OF_MEMORY else compute

    return replace(
        device,
        name=f"{device.name}, MIG {profile}",
        peak={key: value * factor(key) for key, value in device.peak.items() if key not in _SHARED},
        achieved={
            key: tuple(replace(figure, value=figure.value * factor(key)) for figure in figures)
            for key, figures in device.achieved.items()
            if key not in _SHARED
        },
        profile=profile,
    )


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
        achieved={key: _parse_figures(figures) for key, figures in item["achieved"].items()},
    )


def _parse_figures(item: Mapping[str, Any] | list[Mapping[str, Any]]) -> tuple[Figure, ...]:
    """One figure, or a list of them: all-reduce by size, number of GPUs and algorithm."""
    return tuple(_parse_figure(figure) for figure in (item if isinstance(item, list) else [item]))


def _parse_figure(item: Mapping[str, Any]) -> Figure:
    fail_below, warn_below = item.get("limits", (None, None))
    return Figure(
        value=float(item["value"]),
        kind=item.get("kind", "achieved"),
        source=item["source"],
        size=str(item.get("size", "")),
        gpus=item.get("gpus", 0),
        algorithm=item.get("algorithm", ""),
        limits=None if warn_below is None else (float(warn_below), float(fail_below)),
    )


@functools.cache
def references() -> References:
    """The reference figures that are part of builder."""
    text = resources.files("builder.smoke").joinpath("reference.yml").read_text("utf-8")
    return References.parse(yaml.safe_load(text))
