"""A measurement on one device, before and after: what a comparison of two images consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from builder.smoke.values import format_value

#: ``other``: on another machine, or measured in another way; ``busy``: on a machine that was busy. Both are
#: shown and not evaluated. ``host``: slower, but it depends on the host or on files, and nothing else is
#: slower.
Outcome = Literal["same", "slower", "faster", "host", "other", "busy"]


@dataclass(frozen=True, slots=True)
class Change:
    """A measurement on one device, before and after."""

    id: str
    device: str
    """``cuda:0`` or ``rank 3``; empty for a CPU."""
    unit: str
    old: float
    """The median of the runs' medians, in ``unit``."""
    new: float
    ratio: float
    """Above 1 if the new image is better."""
    floor: float
    """The least change that can count, as a fraction."""
    limit: float
    """The change that counts, as a fraction: the floor, or more because of noise."""
    run_limit: float
    """What the limit would be on one device."""
    outcome: Outcome
    on_gpu: bool = False
    runs: tuple[int, int] = (1, 1)
    """The number of runs that were used, old and new."""
    machines: tuple[str, str] = ("", "")
    devices: tuple[int, int] = (1, 1)
    """The number of devices that the runs were on; devices without a uuid count as one."""
    same_device: bool = False
    """All runs of both sides were on one device."""
    differences: tuple[str, ...] = ()
    """What differs between GPUs of the same name, for example ``driver 550.54 -> 580.65``."""
    reason: str = ""
    """Why it is not evaluated, or why it counts below its limit."""

    @property
    def evaluated(self) -> bool:
        return self.outcome not in ("other", "busy")

    def __str__(self) -> str:
        device = f" ({self.device})" if self.device else ""
        old, new = format_value(self.old, self.unit), format_value(self.new, self.unit)
        text = f"{self.id}{device}: {old} -> {new}"
        if not self.evaluated:
            return f"{text}, {self.reason}"
        word = "slower" if self.ratio < 1 else "faster"
        conditions = "; ".join((f"limit {self.limit:.0%}", *self.differences))
        text = f"{text}, {abs(self.ratio - 1):.0%} {word} ({conditions})"
        return f"{text}: {self.reason}" if self.reason else text

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "id": self.id,
            "device": self.device,
            "unit": self.unit,
            "old": self.old,
            "new": self.new,
            "ratio": round(self.ratio, 4),
            "limit": round(self.limit, 4),
            "outcome": self.outcome,
            "runs": list(self.runs),
            "same_device": self.same_device,
        }
        if self.outcome == "other":
            out["machines"] = list(self.machines)
        if self.differences:
            out["differences"] = list(self.differences)
        if self.reason:
            out["reason"] = self.reason
        return out
