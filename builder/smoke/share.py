"""A copy of smoke reports that people send in: figures and versions, without hosts, users, paths and dates.

``FIELDS`` lists every field that the copy may have, and the form of its value. A field that is not listed is
not in the copy, whatever reports contain in the future. A value of another form is left out, and so is a text
that contains a path, an address, or a name of this host, its user or its job. What was left out is printed.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.bench.machine.amd import RESIDENCIES
from builder.bench.machine.network import ALGORITHMS
from builder.bench.machine.nvml import COMPUTE_MODES, THROTTLES
from builder.bench.measurements import MEASUREMENTS
from builder.bench.measurements.layers import BACKENDS
from builder.bench.probes import PROBES
from builder.bench.schema import EXIT_CODES, SEVERITY
from builder.errors import BuilderError
from builder.settings import home_folder, user_name
from builder.smoke.values import Report, devices_of, mapping, mappings, number
from builder.version import __version__

#: Version of the format of the copy.
FORMAT = 1
#: Elements of the longest list in a copy, and characters of its longest text.
MOST, _LONGEST = 4096, 80


class ShareError(BuilderError):
    """Reports cannot be shared: none has figures."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What may be sent in."""

    document: dict[str, Any]
    left_out: tuple[str, ...]
    """The fields that are missing, because their value had an unexpected form, each once."""

    @property
    def data(self) -> bytes:
        """The document as JSON, in ASCII."""
        return json.dumps(self.document, indent=1, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"


# the fields and their forms ---------------------------------------------------------------------------------

#: The value as the copy has it; None: it has another form.
Form = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Text:
    """A text of this form, without names, paths and addresses."""

    form: str

    def __call__(self, value: Any) -> str | None:
        found = isinstance(value, str) and re.fullmatch(self.form, value, re.ASCII)
        return value if found else None


class _Hardware(_Text):
    """The name of a GPU or a processor, from its driver."""


def _number(value: Any) -> float | None:
    """A finite number with six digits, which no measurement exceeds."""
    found = number({"": value}, "")
    if found is None or abs(found) > 1e18:
        return None
    return int(found) if found == int(found) else float(f"{found:.6g}")


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _label(value: Any) -> str | None:
    """A number that this module gave; a host may have such a name, too."""
    return value if isinstance(value, str) and re.fullmatch(r"(?:gpu|node)\d+", value) else None


def _one_of(*words: str) -> Form:
    return lambda value: value if isinstance(value, str) and value in words else None


def _variable(value: Any) -> int | str:
    """A number, such as that of a switch; else only that the variable is set."""
    return int(value) if re.fullmatch(r"-?\d{1,4}", str(value), re.ASCII) else "set"


_STATUS = _one_of(*SEVERITY)
_VERSION = _Text(r"[0-9][0-9.]{0,20}(?:\+(?:cu\d+|rocm[\d.]+|cpu))?")
_HARDWARE = _Hardware(r"[\w .()/@+-]{1,80}")
# Words that the benchmark writes: what else is there was not written by it, and may be a name.
_REASON = _one_of(*THROTTLES.values(), *RESIDENCIES)
_ALGORITHM = _one_of(*ALGORITHMS)
_BACKEND = _one_of(*BACKENDS.values(), "nccl", "gloo")
_STATE = {"clock_mhz": _number, "power_w": _number, "temperature_c": _number, "throttled": [_REASON]}
_LINK = dict.fromkeys(("generation", "width", "max_generation", "max_width"), _number)
_STATISTICS = {
    f"{statistic}_{unit}": _number
    for statistic in ("median", "mad", "sustained", "burst")
    for unit in ("gflop_per_s", "gb_per_s", "samples_per_s", "s", "ms", "us", "fraction")
}
_MEASUREMENT = {
    "id": _one_of(*(measurement.id for measurement in MEASUREMENTS)),
    "status": _STATUS,
    "on": _one_of("cpu", "gpu"),
    "gpu": _label,
    "backend": _BACKEND,
    "algorithm": _ALGORITHM,
    "correct": _flag,
    **dict.fromkeys(("size", "repeats", "members", "gpus", "nodes", "first_s"), _number),
    **dict.fromkeys(("flop", "bytes", "lost_fraction", "round_trip_us"), _number),
    "sizes": [{"size": _number, "repeats": _number, "algorithm": _ALGORITHM, **_STATISTICS}],
    "latencies": [{"size": _number, "median_us": _number}],
    "pairs": [{"from": _number, "to": _number, "gb_per_s": _number, "direct": _flag}],
    "ranks": [{"gpu": _label, "node": _label, "rank": _number, "status": _STATUS, **_STATISTICS, **_STATE}],
    **_STATISTICS,
    **_STATE,
}
#: Findings of the benchmark beside its probes.
_FINDINGS = ("facts", "process", "ranks.even", "ranks.present", "watchdog")
#: All fields of a run: a form, the fields of a mapping, or the elements of a list.
FIELDS: dict[str, Any] = {
    "month": _Text(r"20\d\d-\d\d"),
    "verdict": _one_of(*EXIT_CODES, "none"),
    "duration_s": _number,
    "launch": {"ranks": _number, "nodes": _number},
    "framework": _one_of("torch", "tensorflow", "jax"),
    "build": _one_of("CUDA", "HIP", "CPU"),
    "versions": dict.fromkeys(
        ("python", "framework", "cuda", "hip", "nccl", "cudnn", "driver", "glibc", "kernel"), _VERSION
    ),
    "machine": _one_of("x86_64", "aarch64", "ppc64le"),
    "cpu": {"model": _HARDWARE, **dict.fromkeys(("cores", "usable_cores", "physical_cores"), _number)},
    "memory_gib": _number,
    "variables": {},  # names from facts.variables; see _fields_of
    "devices": [
        {
            "gpu": _label,
            "node": _label,
            "name": _HARDWARE,
            "architecture": _Text(r"sm_\d+[a-z]?|gfx[0-9a-f]+"),
            **dict.fromkeys(("rank", "memory_bytes", "multiprocessors", "power_limit_w"), _number),
            "driver": _VERSION,
            "pcie": _LINK,
            "nvlink": {"links": _number, "active": _number},
            "partition": _Text(r"[SDTQC]PX"),
            "compute_mode": _one_of(*COMPUTE_MODES),
            "mig": _flag,
        }
    ],
    "probes": [{"id": _one_of(*(probe.id for probe in PROBES), *_FINDINGS), "status": _STATUS}],
    "measurements": [_MEASUREMENT],
}


# making the copy --------------------------------------------------------------------------------------------


def share(reports: Sequence[Report], own: Iterable[str]) -> Shared:
    """The copy of some runs that may be sent in.

    GPUs and nodes have numbers: the same GPU has the same number in all runs of the copy.

    Args:
        reports: valid reports.
        own: names of this host, its user and its job, from :func:`own_names`.

    Raises:
        ShareError: no report has figures.
    """
    tested = [report for report in reports if report["verdict"] != "none" and report["measurements"]]
    if not tested:
        raise ShareError("there is nothing to share: no report has a measurement", "run builder smoke TARGET")
    sieve = _Sieve([*own, *(name for report in tested for name in _names_in(report))])
    gpus, nodes = _Numbers("gpu"), _Numbers("node")
    runs = [sieve.kept(FIELDS, _draft(report, gpus, nodes), "") for report in tested]
    document = {"shared_report": FORMAT, "builder": __version__, "runs": runs}
    return Shared(document, tuple(dict.fromkeys(sieve.left_out)))


#: Variables whose values are names: of a user, a host, a job, an account.
_NAMING = re.compile(
    r"(?:SLURM|PBS|LSB|OAR|FLUX|SGE|JOB|COBALT)\w*|USER|LOGNAME|USERNAME|HOME|HOSTNAME|MASTER_ADDR"
)


def own_names() -> list[str]:
    """Names of this host and its user, and all that the scheduler has told this process."""
    names = [socket.gethostname(), str(home_folder()), home_folder().name]
    names += [name for name in [user_name()] if not name.isdigit()]
    return names + [value for name, value in os.environ.items() if _NAMING.match(name)]


def _names_in(report: Report) -> Iterator[str]:
    """The names of hosts, users and jobs that a report contains."""
    facts = mapping(report.get("facts"))
    yield str(facts.get("host", ""))
    for device in devices_of(report):
        yield from (str(device.get(key, "")) for key in ("host", "uuid", "serial"))
    for measurement in report["measurements"]:
        yield from (str(rank.get("host", "")) for rank in mappings(measurement.get("ranks")))
    for name, value in mapping(facts.get("variables")).items():
        if _NAMING.match(str(name)):
            yield str(value)
            yield str(value).rpartition("/")[2]


class _Numbers:
    """Gives each thing a number, in the order in which they appear: ``gpu1``, ``gpu2``."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._known = prefix, dict[Any, str]()

    def of(self, identity: Any) -> str:
        return self._known.setdefault(identity, f"{self._prefix}{len(self._known) + 1}")


#: What a reader would take for something that identifies a machine or a person.
_IDENTIFYING = re.compile(
    r"^[/~]|:/|\\|\w@\w"  # a path, an address
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"  # an IP address
    r"|[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}|[0-9a-fA-F]{16}"  # a hardware address
    r"|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|GPU-|MIG-[0-9a-fA-F]{8}"  # a uuid
)


class _Sieve:
    """Lets through what is listed and has its form, and lists what has not."""

    def __init__(self, names: Iterable[str]) -> None:
        parts = {part for name in names for part in (name.strip(), name.strip().partition(".")[0])}
        parts = {part for part in parts if len(part) <= _LONGEST}
        self._names = _finder(part for part in parts if len(part) >= 3)
        # A host may be called a100, and a GPU is.
        self._long_names = _finder(part for part in parts if len(part) >= 6)
        self.left_out: list[str] = []

    def kept(self, form: Any, value: Any, where: str) -> Any:
        """The part of a value that may be in the copy; None if that is nothing."""
        if isinstance(form, dict):
            given = mapping(value)
            kept = {
                key: self.kept(item, given[key], f"{where}.{key}".lstrip("."))
                for key, item in _fields_of(form, where, given).items()
                if given.get(key) not in (None, "")
            }
            return {key: item for key, item in kept.items() if item is not None} or None
        if isinstance(form, list):
            items = value if isinstance(value, list) else []
            if len(items) > MOST or not isinstance(value, list):
                self.left_out.append(where)
            kept_items = [self.kept(form[0], item, where) for item in items[:MOST]]
            return [item for item in kept_items if item is not None] if items else None
        found = form(value)
        if found is None or (isinstance(form, _Text) and self._identifies(found, form)):
            self.left_out.append(where)
            return None
        return found

    def _identifies(self, text: str, form: _Text) -> bool:
        names = self._long_names if isinstance(form, _Hardware) else self._names
        return bool(_IDENTIFYING.search(text) or (names is not None and names.search(text)))


def _fields_of(form: dict[str, Any], where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mapping; of variables all names that the benchmark may have reported."""
    if where != "variables":
        return form
    names = (name for name in given if re.fullmatch("[A-Z][A-Z0-9_]{1,63}", name, re.ASCII))
    return {name: _variable for name in names if not _NAMING.match(name)}


def _finder(names: Iterable[str]) -> re.Pattern[str] | None:
    """What finds any of these names in a text as a word; None without names. Small numbers are no names."""
    found = sorted({re.escape(n) for n in names if not (n.isdigit() and len(n) < 5)}, key=len, reverse=True)
    return re.compile(rf"(?i)(?<![a-z0-9])(?:{'|'.join(found)})(?![a-z0-9])") if found else None


def _draft(report: Report, gpus: _Numbers, nodes: _Numbers) -> dict[str, Any]:
    """A run in the form of ``FIELDS``, with values that are not checked yet."""
    facts = mapping(report.get("facts"))
    system, torch = mapping(facts.get("system")), mapping(facts.get("torch"))
    framework = mapping(facts.get("framework")) or {**torch, "name": "torch" if torch else ""}
    versions = {
        **{key: torch.get(key) for key in ("cuda", "hip", "nccl", "cudnn")},
        **{key: system.get(key) for key in ("glibc", "kernel")},
        "python": mapping(facts.get("python")).get("version"),
        "framework": framework.get("version"),
        "driver": facts.get("driver"),
    }
    devices = [
        {
            **device,
            "gpu": gpus.of(_identity(device, index)),
            "node": nodes.of(str(device.get("host", ""))),
            "architecture": str(device.get("architecture", "")).partition(":")[0],
            "driver": _version(device.get("driver")),
        }
        for index, device in enumerate(devices_of(report))
    ]
    total = number(mapping(facts.get("memory")), "total_bytes")
    return {
        **report,
        **facts,
        "month": str(report["started"])[:7],
        "framework": framework.get("name"),
        "build": framework.get("build"),
        "versions": {key: _version(value) for key, value in versions.items()},
        "machine": system.get("machine"),
        "memory_gib": None if total is None else round(total / (1 << 30)),
        "variables": mapping(facts.get("variables")),
        "devices": devices,
        "measurements": [_measurement(item, devices, nodes) for item in report["measurements"]],
    }


def _version(value: Any) -> str:
    """What all builds of a version share: ``5.14.0`` of ``5.14.0-427.site``; empty if there is none."""
    match = re.match(r"[0-9]+(?:\.[0-9]+){0,2}(?:\+(?:cu\d+|rocm[\d.]+|cpu)(?!\w))?", str(value or "")[:100])
    return match[0] if match else ""


def _identity(device: Mapping[str, Any], index: int) -> tuple[str, ...]:
    """What makes a GPU the same in two runs. Reports of older versions have no uuid."""
    known = device.get("uuid") or device.get("serial")
    return (str(known),) if known else (str(device.get("host", "")), str(device.get("pci_address") or index))


def _measurement(item: dict[str, Any], devices: Sequence[dict[str, Any]], nodes: _Numbers) -> dict[str, Any]:
    device = str(item.get("device", ""))
    ranks = [
        {**rank, "gpu": _gpu_of(rank, devices), "node": nodes.of(str(rank.get("host", "")))}
        for rank in mappings(item.get("ranks"))
    ]
    return {
        **item,
        "correct": mapping(item.get("correctness")).get("ok"),
        "on": ("gpu" if device.startswith("cuda") else "cpu") if device else None,
        "gpu": "" if ranks else _gpu_of(item, devices),
        "ranks": ranks or None,
    }


def _gpu_of(item: Mapping[str, Any], devices: Sequence[dict[str, Any]]) -> str:
    """The number of the GPU that a measurement, or a rank of it, ran on; empty for a CPU or if unknown."""
    match = re.fullmatch(r"cuda(?::(\d{1,5}))?", str(item.get("device", "")), re.ASCII)
    if match is None:
        return ""
    if item.get("rank") is not None:
        return next((str(d["gpu"]) for d in devices if d.get("rank") == item["rank"]), "")
    position = int(match[1] or 0)
    return str(devices[position]["gpu"]) if position < len(devices) else ""


def contents(document: Mapping[str, Any]) -> list[str]:
    """What a copy contains, and what it may identify, as lines for people."""
    runs = document["runs"]
    devices = [device for run in runs for device in run.get("devices", [])]
    models = sorted({str(device.get("name", "an unnamed GPU")) for device in devices})
    count = len({device.get("gpu") for device in devices})
    cpus = sorted({str(run.get("cpu", {}).get("model", "an unnamed CPU")) for run in runs})
    nodes = len({device.get("node") for device in devices}) or 1
    months = sorted({str(run.get("month")) for run in runs})
    measured = {str(item.get("id")) for run in runs for item in run.get("measurements", [])}
    hardware = f"{count} x {' and '.join(models)}, {nodes} node(s)" if models else "no GPU"
    return [
        f"{len(runs)} run(s) of {', '.join(months)}; {len(measured)} measurements; {hardware}; "
        f"{', '.join(cpus)}",
        "it has versions of the driver, the framework and libraries; no names of hosts, users, jobs and "
        "images, no paths, addresses, serial numbers, times and texts",
        "a rare GPU, processor or number of them can still identify the machine: read the file before you "
        "send it; builder uploads nothing",
    ]
