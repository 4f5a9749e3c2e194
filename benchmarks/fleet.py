"""A simulated fleet of GPUs: the smoke reports that it writes, with noise that others have published.

A figure of a run is a random number. Its logarithm is

    ln(value) = image + device * (shared * gpu + sqrt(1 - shared ** 2) * figure) + run * once

where ``gpu``, ``figure`` (one for each figure of each GPU) and ``once`` are normal with a standard deviation
of 1. ``shared`` says how much the figures of one GPU rise and fall together: products, convolutions and
attention all follow its clock.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.smoke.machines import machine
from builder.smoke.reports import StoredReport, read_folder
from builder.smoke.values import usable_measurements, values_of

#: Devices of one model that are enough to compute how much they differ.
_ENOUGH_DEVICES = 5


@dataclass(frozen=True)
class Noise:
    """How much a figure varies without a reason. Standard deviations as fractions."""

    run: float
    """Between runs on one device."""
    device: float
    """Between devices of one model."""
    shared: float = 0.0
    """The part of ``device`` that all power-limited figures of a GPU share: 0 to 1."""
    on_gpu: bool = True


#: Assumed noise; docs/grading.md has the sources. ``shared`` is nowhere published.
ASSUMED: dict[str, Noise] = {
    "matmul.fp32": Noise(0.007, 0.015, 0.5),
    "matmul.tf32": Noise(0.008, 0.020, 0.9),
    "matmul.fp16": Noise(0.008, 0.020, 0.9),
    "matmul.bf16": Noise(0.008, 0.020, 0.9),
    "matmul.fp64": Noise(0.007, 0.015, 0.5),
    "matmul.fp8": Noise(0.008, 0.020, 0.9),
    "memory.copy": Noise(0.003, 0.006),
    "memory.triad": Noise(0.003, 0.006),
    "transfer.h2d_pinned": Noise(0.006, 0.015),
    "transfer.d2h_pinned": Noise(0.006, 0.015),
    "transfer.h2d_pageable": Noise(0.08, 0.10, 0.5),
    "transfer.d2h_pageable": Noise(0.08, 0.10, 0.5),
    "conv.training": Noise(0.010, 0.020, 0.9),
    "attention": Noise(0.010, 0.020, 0.9),
    "training": Noise(0.05, 0.06),
    "launch": Noise(0.03, 0.05),
    "torch.import_time": Noise(0.10, 0.12, 0.5, on_gpu=False),
    "torch.first_kernel": Noise(0.10, 0.12, 0.5),
    "conv.first_kernel": Noise(0.10, 0.12, 0.5),
    "dataloader": Noise(0.08, 0.08, on_gpu=False),
    "checkpoint.write": Noise(0.20, 0.20, 0.7, on_gpu=False),
    "checkpoint.read": Noise(0.20, 0.20, 0.7, on_gpu=False),
}
#: Figures that a GPU's power limit slows down.
POWER_LIMITED = (
    "matmul.tf32",
    "matmul.fp16",
    "matmul.bf16",
    "matmul.fp8",
    "conv.training",
    "attention",
)


class Device:
    """A GPU; the first one of a node stands for the node's processor and files, too."""

    def __init__(self, rng: random.Random, noise: Mapping[str, Noise]) -> None:
        self.uuid = f"GPU-{rng.getrandbits(64):016x}"
        common = rng.gauss(0, 1)
        self.effects = {
            name: n.device * (n.shared * common + math.sqrt(1 - n.shared**2) * rng.gauss(0, 1))
            for name, n in noise.items()
        }


def report(
    devices: Sequence[Device], rng: random.Random, noise: Mapping[str, Noise], speed: Mapping[str, float]
) -> StoredReport:
    """The report of a run on the GPUs of a node; of several, one rank on each.

    Args:
        devices: the GPUs.
        rng: for the noise of the run.
        noise: of each figure.
        speed: what the image multiplies some figures by.
    """
    ranks = range(len(devices)) if len(devices) > 1 else [None]
    facts = {
        "cpu": {"model": "a processor", "usable_cores": 16},
        "host": devices[0].uuid,
        "devices": [
            {"name": "a GPU", "uuid": d.uuid, "rank": rank} for d, rank in zip(devices, ranks, strict=True)
        ],
    }
    measurements = []
    for name, n in noise.items():
        used = devices if n.on_gpu else devices[:1]
        items = [_figure(d.effects[name] + n.run * rng.gauss(0, 1), speed.get(name, 1.0)) for d in used]
        where = {"device": "cuda:0"} if n.on_gpu else {}
        item: dict[str, Any] = {"id": name, "status": "pass", "better": "higher", **items[0], **where}
        if len(used) > 1:
            item["ranks"] = [
                {"rank": rank, "device": f"cuda:{rank}", **figures} for rank, figures in enumerate(items)
            ]
        measurements.append(item)
    return StoredReport({**_REPORT, "facts": facts, "measurements": measurements}, "simulated")


_REPORT: dict[str, Any] = {
    "verdict": "pass",
    "started": "2026-11-23T00:00:00Z",
    "probes": [],
    "image": {"digest": "sha256:" + "0" * 64, "packages": {}},
}


def _figure(effect: float, speed: float) -> dict[str, Any]:
    """A value. Its noise within the run is small, as it is on GPUs: it says little of runs."""
    median = 100.0 * speed * math.exp(effect)
    return {"median_gb_per_s": median, "mad_gb_per_s": 0.0005 * median, "repeats": 40}


def measured(folders: Iterable[Path]) -> dict[str, Noise]:
    """The noise in stored reports; the assumed noise where they have too few runs.

    ``run`` needs two runs or more of one image on one device, ``device`` five devices of one model.

    Args:
        folders: folders of reports, as builder writes them (``reports/TARGET``).
    """
    runs: dict[tuple[str, ...], list[float]] = defaultdict(list)
    gpus: dict[str, bool] = {}
    for folder in folders:
        for stored in read_folder(folder)[0]:
            for measurement in usable_measurements(stored.report):
                for value in values_of(measurement):
                    where = machine(stored.report, measurement, value)
                    if value.median > 0 and where.device:
                        key = (value.id, where.name, stored.digest, where.device)
                        runs[key].append(math.log(value.median))
                        gpus[value.id] = value.on_gpu
    out = dict(ASSUMED)
    for name, on_gpu in gpus.items():
        of_name = {key[1:]: values for key, values in runs.items() if key[0] == name}
        known = out.get(name)
        run = _run_noise(list(of_name.values()))
        device = _device_noise(of_name, run or 0.0)
        if known is None:
            if run is not None:
                out[name] = Noise(run, device or 0.0, on_gpu=on_gpu)
            continue
        out[name] = replace(
            known, run=known.run if run is None else run, device=known.device if device is None else device
        )
    shared = _shared_noise(runs)
    if shared is not None:
        out.update({name: replace(out[name], shared=shared) for name in POWER_LIMITED})
    return out


def _shared_noise(runs: Mapping[tuple[str, ...], Sequence[float]]) -> float | None:
    """The root of the mean correlation of power-limited figures over devices; None if there are too few.

    The noise of the runs is in it, so that it is rather too small.
    """
    models: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for (name, model, digest, device), values in runs.items():
        if name in POWER_LIMITED:
            models[model, digest][device][name] = statistics.mean(values)
    found = []
    for devices in models.values():
        for one, other in itertools.combinations(POWER_LIMITED, 2):
            pairs = [(d[one], d[other]) for d in devices.values() if one in d and other in d]
            if len(pairs) >= _ENOUGH_DEVICES:
                found.append(statistics.correlation(*zip(*pairs, strict=True)))
    return math.sqrt(max(statistics.mean(found), 0.0)) if found else None


def _run_noise(groups: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation within groups of runs; None if no group has two."""
    squares = sum(statistics.variance(g) * (len(g) - 1) for g in groups if len(g) > 1)
    freedom = sum(len(g) - 1 for g in groups)
    return math.sqrt(squares / freedom) if freedom else None


def _device_noise(of_name: Mapping[tuple[str, ...], Sequence[float]], run: float) -> float | None:
    """The largest standard deviation between devices of one model and image; None if there are too few."""
    models: dict[tuple[str, ...], list[Sequence[float]]] = defaultdict(list)
    for (model, digest, _), values in of_name.items():
        models[model, digest].append(values)
    found = []
    for groups in models.values():
        if len(groups) >= _ENOUGH_DEVICES:
            of_runs = statistics.mean(run**2 / len(values) for values in groups)
            variance = statistics.variance(statistics.mean(values) for values in groups)
            found.append(math.sqrt(max(variance - of_runs, 0.0)))
    return max(found, default=None)


def read_noise(path: Path) -> dict[str, Noise]:
    """The noise in a file that ``--save-noise`` wrote."""
    return noise_of(json.loads(path.read_text()))


def noise_of(data: Mapping[str, Any]) -> dict[str, Noise]:
    """Noise from JSON: an object for each figure, with the fields of :class:`Noise`."""
    return {str(name): Noise(**item) for name, item in data.items()}


def noise_json(noise: Mapping[str, Noise]) -> dict[str, Any]:
    """Noise as JSON."""
    return {name: asdict(n) for name, n in noise.items()}
