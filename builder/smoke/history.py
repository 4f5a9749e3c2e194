"""Smoke reports over time: reading kept ones, comparing two images by a robust test. docs/grading.md states the rule in words.

Reports lie in a plain folder, ``reports/TARGET/*.json``, and are attached to published images.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from builder.errors import BuilderError
from builder.smoke.grade import (
    LOST,
    MAD_TO_SIGMA,
    SIGMAS,
    Report,
    Value,
    devices_of,
    number,
    shown,
    values_of,
)
from builder.smoke.schema import fault

#: ``other``: another machine; ``busy``: a machine too busy to tell. Both are shown and not judged.
Outcome = Literal["same", "slower", "faster", "other", "busy"]

#: A change of less than this part never counts: what the same image shows from one run to the next, by kind of measurement.
FLOORS = {"gpu": 0.05, "cpu": 0.15, "files": 0.30}
#: Measurements that hang on file systems, on what the kernel has cached, or on the moment.
_FILES = ("torch.import_time", "torch.first_kernel", "checkpoint.", "dataloader")
#: Of a baseline with many runs, the newest count.
RUNS = 10
#: Packages that measurements are made of; changed ones are named first.
_LIKELY = re.compile(
    r"(py)?torch.*|triton.*|nvidia-.*|cuda.*|libcu.*|cudnn|nccl|rccl|miopen.*|roc.*|hip.*|mkl.*|libopenblas|openblas|.*blas.*|.*lapack.*|"
    r"onednn|.*openmp|libgomp|_openmp_mutex|numpy|python|tbb"
)


class ReportError(BuilderError):
    """A smoke report that cannot be read, or that is not one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A report and where it is from: a path, or the reference of the image it is attached to."""

    report: Report
    source: str

    @property
    def digest(self) -> str:
        return str(self._image.get("digest", ""))

    @property
    def tag(self) -> str:
        """The dated tag that the image was tested for (``26.11``); empty when unknown."""
        return str(self._image.get("tag") or "")

    @property
    def started(self) -> str:
        """UTC, ``2026-11-21T08:00:00Z``: sorts by time."""
        return str(self.report.get("started", ""))

    @property
    def packages(self) -> dict[str, str] | None:
        """Name and version of what is in the image, when the report tells."""
        found = self._image.get("packages")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else None

    @property
    def _image(self) -> dict[str, Any]:
        image = self.report.get("image")
        return image if isinstance(image, dict) else {}


# reading --------------------------------------------------------------------------------------------------------------


def parse_report(text: str | bytes, source: str) -> Kept:
    """A report from its JSON; ``source`` is for messages.

    Raises:
        ReportError: not JSON, no report, of another schema, or damaged; it is never taken for a passed test.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        said = e.args[0] if isinstance(e, json.JSONDecodeError) else "not text, or nested too deep"
        raise ReportError(
            f"{source}: not JSON: {said}", "take another report, or run builder smoke again"
        ) from None
    if said := fault(value):
        raise ReportError(f"{source}: {said}", "take another report, or run builder smoke again")
    return Kept(value, source)


def read_report(path: Path) -> Kept:
    """A kept report. Raises ReportError as :func:`parse_report`, and when there is no such file."""
    try:
        return parse_report(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ReportError(
            f"{path}: no such report", "builder smoke TARGET makes one; they lie in reports/TARGET"
        ) from None
    except OSError as e:
        raise ReportError(
            f"{path}: cannot be read: {e.strerror}", "check the path and its permissions"
        ) from None


def read_folder(folder: Path) -> tuple[list[Kept], list[str]]:
    """All reports of a folder, the newest last, and why others in it cannot be read."""
    found, complaints = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read_report(path))
        except ReportError as e:
            complaints.append(e.message)
    return sorted(found, key=lambda k: (k.started, k.source)), complaints


def resolve(
    text: str,
    folder: Path,
    *,
    without: str = "",
    attached: Callable[[str], Sequence[tuple[str, bytes]]] | None = None,
) -> list[Kept]:
    """The runs that ``--compare`` names: all of one image, the newest last, :data:`RUNS` at most.

    Args:
        text: a report's file, a folder of them, ``previous``, a dated tag, a date (``2026-10`` or ``2026-10-03``), a digest or
            its beginning, a tag of the registry, or ``host/repository:tag``.
        folder: ``reports/TARGET``.
        without: a digest that ``previous`` must not be.
        attached: gives source and JSON of the reports that are attached to a published image.

    Raises:
        ReportError: there is no such report, or it cannot be read.
        RegistryError: the registry cannot be asked.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return _one_image(_only(*read_folder(path), f"{path} holds no report"))
    if path.suffix == ".json" or path.is_file():
        return [read_report(path)]
    kept, complaints = read_folder(folder)
    if found := [k for k in kept if _named(k, text, without)]:
        return _one_image(found)
    if attached is not None and text != "previous":
        here = [parse_report(data, source) for source, data in attached(text)]
        if here:
            return _one_image(sorted(here, key=lambda k: k.started))
    tags = sorted({k.tag for k in kept if k.tag})
    known = f"; it has reports of {', '.join(tags)}" if tags else "; it has none" if not kept else ""
    unreadable = f"; not readable: {'; '.join(complaints)}" if complaints else ""
    raise ReportError(
        f"no report of {text!r} in {folder}{known}{unreadable}",
        "name a report's file, a tag, a date, a digest or 'previous'; builder smoke makes reports",
    )


def _only(kept: list[Kept], complaints: list[str], nothing: str) -> list[Kept]:
    if not kept:
        raise ReportError("; ".join([nothing, *complaints]), "builder smoke TARGET makes reports")
    return kept


def _named(kept: Kept, text: str, without: str) -> bool:
    if text == "previous":
        return kept.digest != without
    dated = re.fullmatch(r"\d{4}-\d\d(-\d\d)?", text) and kept.started.startswith(text)
    hex_part = text.removeprefix("sha256:")
    digest = re.fullmatch(r"[0-9a-f]{7,64}", hex_part) and kept.digest.removeprefix("sha256:").startswith(
        hex_part
    )
    return bool(kept.tag == text or dated or digest)


def _one_image(kept: Sequence[Kept]) -> list[Kept]:
    """The newest image's runs that could be carried out; all of them when none could."""
    digest = kept[-1].digest
    same = [k for k in kept if k.digest == digest]
    return ([k for k in same if k.report["verdict"] != "error"] or same)[-RUNS:]


# packages -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package that differs between two images; None: not there. ``likely``: measurements are made of it."""

    name: str
    old: str | None
    new: str | None

    @property
    def likely(self) -> bool:
        return bool(_LIKELY.fullmatch(self.name.removesuffix(" (pip)")))

    def __str__(self) -> str:
        return f"{self.name} {self.old or '(none)'} -> {self.new or '(none)'}"


def packages_of_sbom(data: bytes, source: str) -> dict[str, str]:
    """The same from a CycloneDX bill of material, without builds.

    Raises:
        ReportError: it is none.
    """
    try:
        components = json.loads(data)["components"]
        pairs = [
            (str(c["name"]), str(c["version"]), str(c["purl"]))
            for c in components
            if c.get("type") == "library"
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ReportError(
            f"{source}: no CycloneDX bill of material in JSON", "publish the image again"
        ) from None
    out: dict[str, str] = {}
    for name, version, _ in sorted(pairs, key=lambda p: p[2]):
        out[f"{name} (pip)" if name in out else name] = version
    return dict(sorted(out.items()))


def changed_packages(old: Mapping[str, str], new: Mapping[str, str]) -> list[PackageChange]:
    """What differs, likely causes of a change in speed first; a build alone counts where both sides tell it."""
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before and after and (" " not in before or " " not in after):  # one side tells no builds
            before, after = before.partition(" ")[0], after.partition(" ")[0]
        if before != after:
            changes.append(PackageChange(name, before, after))
    return sorted(changes, key=lambda c: (not c.likely, c.name))


# comparing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A measurement then and now. ``ratio`` is above 1 when it got better; ``limit`` is the change that counts, as a part."""

    id: str
    device: str
    unit: str
    old: float
    new: float
    ratio: float
    limit: float
    outcome: Outcome
    runs: tuple[int, int] = (1, 1)
    machines: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        text = f"{self.id}{f' ({self.device})' if self.device else ''}: {shown(self.old, self.unit)} -> {shown(self.new, self.unit)}"
        if self.outcome == "other":
            return f"{text}, on another machine: {self.machines[0]}, now {self.machines[1]}"
        if self.outcome == "busy":
            return f"{text}, on a busy machine"
        word = "slower" if self.ratio < 1 else "faster"
        return f"{text}, {abs(self.ratio - 1):.0%} {word} ({self.limit:.0%} counts)"

    def to_json(self) -> dict[str, Any]:
        more = {"machines": list(self.machines)} if self.outcome == "other" else {}
        return {
            "id": self.id,
            "device": self.device,
            "unit": self.unit,
            "old": self.old,
            "new": self.new,
            "ratio": round(self.ratio, 4),
            "limit": round(self.limit, 4),
            "outcome": self.outcome,
            "runs": list(self.runs),
            **more,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two images' runs side by side. ``packages`` is None when one side does not tell what it holds."""

    old: tuple[Kept, ...]
    new: tuple[Kept, ...]
    changes: tuple[Change, ...]
    probes: tuple[tuple[str, str, str], ...] = ()
    """Probes that got worse: id, then, now."""
    packages: tuple[PackageChange, ...] | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(c for c in self.changes if c.outcome == "slower")

    @property
    def improvements(self) -> tuple[Change, ...]:
        return tuple(c for c in self.changes if c.outcome == "faster")

    def to_json(self) -> dict[str, Any]:
        packages = self.packages
        return {
            "old": {
                "digest": self.old[-1].digest,
                "tag": self.old[-1].tag,
                "started": self.old[-1].started,
                "runs": len(self.old),
            },
            "new": {
                "digest": self.new[-1].digest,
                "tag": self.new[-1].tag,
                "started": self.new[-1].started,
                "runs": len(self.new),
            },
            "changes": [c.to_json() for c in self.changes],
            "regressions": [c.id for c in self.regressions],
            "probes": [{"id": i, "old": a, "new": b} for i, a, b in self.probes],
            "packages": None
            if packages is None
            else [{"name": p.name, "old": p.old, "new": p.new} for p in packages],
            "notes": list(self.notes),
        }


def compare(
    new: Sequence[Kept],
    old: Sequence[Kept],
    *,
    new_packages: Mapping[str, str] | None = None,
    old_packages: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares the runs of two images, measurement by measurement and device by device.

    A change counts when it exceeds both a floor (:data:`FLOORS`) and three standard deviations of what noise explains: the error
    of each run's median, from its MAD, and with three runs or more also how the runs differ among themselves. Figures from
    different devices or processors are shown and not judged, and neither are a processor's when other work took much of its time
    in all runs of a side.

    Args:
        new, old: one run or more of each image; the last one is the newest.
        new_packages, old_packages: what the images hold, where the reports do not tell.
    """
    after, before = _by_measurement(new), _by_measurement(old)
    changes = [_change(key, before[key], after[key]) for key in after if key in before]
    gone = sorted({i for i, _ in before.keys() - after.keys()})
    notes = [f"measured then and not now: {', '.join(gone)}"] if gone else []
    then, now = old_packages or _packages(old), new_packages or _packages(new)
    packages = None if then is None or now is None else tuple(changed_packages(then, now))
    if packages is None:
        notes.append(
            f"the report of {'the older' if then is None else 'the newer'} image does not tell its packages"
        )
    if busy := sorted({c.id for c in changes if c.outcome == "busy"}):
        notes.append(f"not judged, since other work took much of the machine: {', '.join(busy)}")
    order = {"slower": 0, "faster": 1, "same": 2, "busy": 3, "other": 4}
    changes.sort(key=lambda c: (order[c.outcome], c.ratio, c.id, c.device))
    return Comparison(
        tuple(old), tuple(new), tuple(changes), tuple(_worse_probes(old[-1], new[-1])), packages, tuple(notes)
    )


def _packages(kept: Sequence[Kept]) -> dict[str, str] | None:
    return next((k.packages for k in reversed(kept) if k.packages is not None), None)


Runs = list[tuple[Value, str, bool]]


def _by_measurement(kept: Sequence[Kept]) -> dict[tuple[str, str], Runs]:
    """Each run's figure, its machine and whether that was busy, by measurement and device; only what was found right."""
    out: dict[tuple[str, str], Runs] = {}
    for run in kept:
        unsteady = any(
            p["id"] == "machine.steady" and p["status"] in ("warn", "fail") for p in run.report["probes"]
        )
        for measurement in run.report["measurements"]:
            if measurement["status"] not in ("pass", "warn"):
                continue
            lost = (number(measurement, "lost_fraction") or 0.0) > LOST
            for value in values_of(measurement):
                if value.median > 0:
                    place = f"rank {value.rank}" if value.rank is not None else value.device
                    busy = (unsteady or lost) and not value.device.startswith("cuda")
                    out.setdefault((value.id, place), []).append(
                        (value, machine(run.report, measurement, value), busy)
                    )
    return out


def machine(report: Report, measurement: Mapping[str, Any], value: Value) -> str:
    """What a figure was measured on, as far as it matters: the GPU's name, or the processor and how many of its cores."""
    facts = report.get("facts", {})
    if value.device.startswith("cuda"):
        devices = devices_of(report)
        index = value.device.partition(":")[2]
        by_rank = [d for d in devices if value.rank is not None and d.get("rank") == value.rank]
        by_place = devices[int(index) : int(index) + 1] if index.isdigit() else devices[:1]
        return str(
            next((d.get("name") for d in [*by_rank, *by_place]), measurement.get("device_name", "a GPU"))
        )
    cpu = facts.get("cpu") if isinstance(facts.get("cpu"), dict) else {}
    cores = number(cpu, "usable_cores")
    quota = number(cpu, "quota_cores")
    count = min(c for c in (cores, quota, math.inf) if c is not None)
    return f"{cpu.get('model', 'a CPU')}{f', {count:g} cores' if math.isfinite(count) else ''}"


def _change(key: tuple[str, str], old: Runs, new: Runs) -> Change:
    name, place = key
    busy = all(b for *_, b in old) or all(b for *_, b in new)
    old, new = [r for r in old if not r[2]] or old, [r for r in new if not r[2]] or new
    centre_old, noise_old = _centre(v for v, *_ in old)
    centre_new, noise_new = _centre(v for v, *_ in new)
    value, machine_new, _ = new[-1]
    machine_old = old[-1][1]
    ratio = centre_new / centre_old if value.higher else centre_old / centre_new
    limit = max(_floor(name, value.device), SIGMAS * math.hypot(noise_old, noise_new))
    outcome: Outcome = "same"
    if machine_old != machine_new or old[-1][0].unit != value.unit:
        outcome = "other"
    elif busy:
        outcome = "busy"
    elif limit < 1 and ratio < 1 - limit:
        outcome = "slower"
    elif limit < 1 and ratio > 1 / (1 - limit):
        outcome = "faster"
    return Change(
        name,
        place if place != "cpu" else "",
        value.unit,
        centre_old,
        centre_new,
        ratio,
        limit,
        outcome,
        (len(old), len(new)),
        (machine_old, machine_new),
    )


def _centre(values: Iterable[Value]) -> tuple[float, float]:
    """The median of some runs' medians, and its standard error as a part of it."""
    runs = list(values)
    medians = [v.median for v in runs]
    centre = statistics.median(medians)
    within = statistics.median(v.error / v.median for v in runs)
    between = 0.0
    if len(runs) >= 3:
        between = MAD_TO_SIGMA * statistics.median(abs(m - centre) for m in medians) / centre
    return centre, max(within, between) / math.sqrt(len(runs))


def _floor(name: str, device: str) -> float:
    if name.startswith(_FILES):
        return FLOORS["files"]
    return FLOORS["gpu" if device.startswith("cuda") else "cpu"]


_ORDER = {"skip": 0, "pass": 0, "warn": 1, "fail": 2}


def _worse_probes(old: Kept, new: Kept) -> list[tuple[str, str, str]]:
    then = {p["id"]: p["status"] for p in old.report["probes"]}
    now = {p["id"]: p["status"] for p in new.report["probes"]}
    return [(i, then[i], s) for i, s in sorted(now.items()) if i in then and _ORDER[s] > _ORDER[then[i]]]
