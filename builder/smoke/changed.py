"""What differs between the runs of two images: the GPU, its driver, the image, its packages.

A figure that changed has one of these causes, or is noise. Naming those that did not change is half of the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from builder.smoke.packages import PackageChange
from builder.smoke.reports import StoredReport
from builder.smoke.values import Report, devices_of, number

#: How many values are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """One possible cause of a change."""

    what: str
    """``GPU``, ``power limit``, ``driver``, ``image`` or ``packages``."""
    changed: bool | None
    """None: not known."""
    text: str
    """``the same``, ``570.86 → 580.82``, ``another one of the same model``."""

    def __str__(self) -> str:
        return f"{self.what} {self.text}"


def differences(
    old: Sequence[StoredReport], new: Sequence[StoredReport], packages: Sequence[PackageChange] | None
) -> tuple[Difference, ...]:
    """What differs between the runs of two images.

    Args:
        old: the runs of the old image, at least one.
        new: the runs of the new image, at least one.
        packages: the packages that differ; None if they are not known.
    """
    found = []
    if any(devices_of(run.report) for run in (*old, *new)):
        found.append(_gpu(old, new))
        limits = _by_values("power limit", old, new, _power_limits)
        found += [limits] if limits.changed is not None else []
        found.append(_by_values("driver", old, new, _drivers))
    same_image = old[-1].digest == new[-1].digest and bool(new[-1].digest)
    found.append(Difference("image", not same_image, "the same" if same_image else "another one"))
    if not same_image:
        found.append(_packages(packages))
    return tuple(found)


def _gpu(old: Sequence[StoredReport], new: Sequence[StoredReport]) -> Difference:
    models = _by_values("GPU", old, new, _models)
    if models.changed:
        return models
    before, after = (_all(side, _uuids) for side in (old, new))
    if not before or not after:
        return Difference("GPU", None, "not known: a report does not identify it")
    if before == after:
        return Difference("GPU", False, "the same" if len(after) == 1 else f"the same {len(after)}")
    if before & after:
        return Difference("GPU", True, f"{len(after - before)} of {len(after)} are others")
    if len(before) == len(after) == 1:
        (first,), (second,) = before, after
        return Difference("GPU", True, f"another one of the same model ({_short(first)} → {_short(second)})")
    return Difference("GPU", True, "others of the same model")


def _by_values(
    what: str,
    old: Sequence[StoredReport],
    new: Sequence[StoredReport],
    values: Callable[[Report], set[str]],
) -> Difference:
    before, after = _all(old, values), _all(new, values)
    if not before or not after:
        return Difference(what, None, "not known")
    if before == after:
        return Difference(what, False, f"the same ({_listed(after)})")
    return Difference(what, True, f"{_listed(before)} → {_listed(after)}")


def _all(runs: Sequence[StoredReport], values: Callable[[Report], set[str]]) -> set[str]:
    return {value for run in runs for value in values(run.report) if value}


def _listed(values: set[str]) -> str:
    shown = sorted(values)
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


def _models(report: Report) -> set[str]:
    return {str(device.get("name") or "")[:80] for device in devices_of(report)}


def _uuids(report: Report) -> set[str]:
    return {str(device.get("uuid") or "")[:80] for device in devices_of(report)}


def _short(uuid: str) -> str:
    """The beginning of a uuid: ``GPU-1234abcd-...`` is ``1234abcd``."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")[:8]


def _drivers(report: Report) -> set[str]:
    found = {str(device.get("driver") or "")[:40] for device in devices_of(report)} - {""}
    return found or {str(report["facts"].get("driver") or "")[:40]}


def _power_limits(report: Report) -> set[str]:
    limits = [number(device, "power_limit_w") for device in devices_of(report)]
    return {f"{limit:.0f} W" for limit in limits if limit is not None}


def _packages(packages: Sequence[PackageChange] | None) -> Difference:
    if packages is None:
        return Difference("packages", None, "not known")
    if not packages:
        return Difference("packages", False, "the same")
    return Difference("packages", True, f"{len(packages)} changed")
