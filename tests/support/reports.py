"""Smoke reports as the benchmark writes them. Samples have a fixed, realistic noise."""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from builder.bench.schema import SCHEMA_VERSION
from builder.deliver.smoke.grade import grade
from builder.deliver.smoke.reference import references
from builder.deliver.smoke.reports import StoredReport
from builder.lock.config.site import Gpu

GIB = 1 << 30
DIGEST = "sha256:" + "1" * 64


def _device(name: str, architecture: str, memory_bytes: int, multiprocessors: int) -> dict[str, Any]:
    """A device as torch and the benchmark report it."""
    return {
        "name": name,
        "architecture": architecture,
        "memory_bytes": memory_bytes,
        "multiprocessors": multiprocessors,
    }


A100_40 = _device("NVIDIA A100-SXM4-40GB", "sm_80", 42297786368, 108)
A100_80 = _device("NVIDIA A100-SXM4-80GB", "sm_80", 84974239744, 108)
MI250X = _device("AMD Instinct MI250X", "gfx90a", 64 * GIB - (16 << 20), 110)
H200 = _device("NVIDIA H200", "sm_90", 143156 << 20, 132)
MI300X = _device("AMD Instinct MI300X", "gfx942", 196592 << 20, 304)
STRANGE = _device("Frobnicator 9000", "sm_130", 99 * GIB, 300)

#: The values of a good A100 SXM4 40 GB, in the units of the measurements.
GOOD_A100 = {
    "matmul.fp32": 18_200.0,
    "matmul.tf32": 121_000.0,
    "matmul.fp16": 251_000.0,
    "matmul.bf16": 248_000.0,
    "memory.copy": 1_370.0,
    "memory.triad": 1_390.0,
    "transfer.h2d_pinned": 25.1,
}

#: A short report as the benchmark writes it, without builder's additions.
SMALL: dict[str, Any] = {
    "schema_version": 2,
    "verdict": "pass",
    "started": "2026-01-01T00:00:00Z",
    "duration_s": 3.5,
    "expect": {"gpu": "nvidia", "architectures": [], "devices": None},
    "facts": {"devices": [{"name": "Some GPU", "architecture": "sm_80", "memory_bytes": 42297786368}]},
    "probes": [
        {"id": "torch.build", "status": "pass", "seen": "CUDA build", "advice": ""},
        {"id": "gpu.x", "status": "skip", "seen": "not [here]", "advice": ""},
    ],
    "measurements": [
        {
            "id": "matmul.fp32",
            "status": "pass",
            "seen": "",
            "advice": "",
            "device": "cuda:0",
            "median_gflop_per_s": 83.81,
            "mad_gflop_per_s": 6.6,
            "samples_gflop_per_s": [83.81],
            "repeats": 5,
            "size": 2048,
            "correctness": {"check": "c", "value": 0.0, "limit": 1.0, "ok": True},
        }
    ],
}

#: The host and the user of the report ``rich``.
HOST, USER = "nid004217", "ada.byron"
#: The packages of an image, as reports list them.
PACKAGES = {"torch (pip)": "2.13.0", "nvidia-cublas-cu12 (pip)": "12.8.4.1", "zlib": "1.3.1 h4"}


def measured(
    name: str,
    median: float,
    unit: str = "",
    *,
    device: str = "cuda:0",
    noise: float = 0.005,
    repeats: int = 21,
    seed: int = 1,
    better: str = "",
    **more: Any,
) -> dict[str, Any]:
    """A measurement whose samples vary by ``noise`` (a standard deviation) around ``median``."""
    unit = unit or (
        "gflop_per_s" if name.startswith(("matmul", "conv", "attention", "cpu.peak")) else "gb_per_s"
    )
    rng = random.Random(f"{name} {seed} {median}")
    samples = [median * max(0.05, 1 + rng.gauss(0, noise)) for _ in range(repeats)]
    middle = statistics.median(samples)
    return {
        "id": name,
        "status": "pass",
        "seen": "",
        "advice": "",
        "device": device,
        f"median_{unit}": middle,
        f"mad_{unit}": statistics.median(abs(s - middle) for s in samples),
        f"samples_{unit}": samples,
        "repeats": repeats,
        "better": better or ("lower" if unit in ("s", "ms") else "higher"),
        "correctness": {"check": "c", "value": 0.0, "limit": 1.0, "ok": True},
        **more,
    }


def report(
    measurements: Sequence[Mapping[str, Any]],
    *,
    devices: Sequence[Mapping[str, Any]] = (),
    probes: Sequence[tuple[str, str]] = (("torch.import", "pass"), ("torch.build", "pass")),
    verdict: str = "pass",
    started: str = "2026-11-21T08:00:00Z",
    digest: str = DIGEST,
    ranks: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A complete report, which is valid by the schema.

    ``cpu`` and ``cores`` describe the processor; all other keywords go into ``image``.
    """
    cpu, cores = more.pop("cpu", "AMD EPYC 7763"), more.pop("cores", 8)
    image = {"target": "a100", **more}
    build = "CUDA" if devices else "CPU"
    return copy.deepcopy(
        {
            "schema_version": SCHEMA_VERSION,
            "verdict": verdict,
            "started": started,
            "duration_s": 41.5,
            "expect": {"gpu": "nvidia" if devices else "none", "architectures": [], "devices": None},
            "image": {"digest": digest, "runner": "docker", **image},
            "launch": {"ranks": ranks, "nodes": 1, "by": "spawn" if ranks > 1 else "single"},
            "facts": {
                "cpu": {"model": cpu, "cores": cores, "usable_cores": cores, "quota_cores": None},
                "torch": {"version": "2.13.0", "build": build},
                "host": "n017",
                **({"devices": [dict(d) for d in devices]} if devices else {}),
            },
            "probes": [
                {"id": i, "status": s, "seen": f"what {i} saw", "advice": "" if s == "pass" else "do it"}
                for i, s in probes
            ],
            "measurements": [dict(m) for m in measurements],
        }
    )


def a100(
    scale: Mapping[str, float] | None = None, *, noise: float = 0.005, seed: int = 1, **more: Any
) -> dict[str, Any]:
    """The report of an A100 40 GB; ``scale`` multiplies some of its values."""
    figures = {k: v * (scale or {}).get(k, 1.0) for k, v in GOOD_A100.items()}
    more.setdefault("devices", [A100_40])
    return report([measured(k, v, noise=noise, seed=seed) for k, v in figures.items()], **more)


def ranked(name: str, medians: Sequence[float], *, noise: float = 0.004, **more: Any) -> dict[str, Any]:
    """A measurement of several ranks, each on its own device."""
    whole = measured(name, medians[0], noise=noise, **more)
    unit = next(k.removeprefix("median_") for k in whole if k.startswith("median_"))
    whole["ranks"] = [
        {
            "rank": i,
            "host": "n017",
            "device": f"cuda:{i}",
            "status": "pass",
            f"median_{unit}": m,
            f"mad_{unit}": m * noise / 1.4826,
        }
        for i, m in enumerate(medians)
    ]
    return whole


def cpu(
    scale: Mapping[str, float] | None = None, *, noise: float = 0.03, seed: int = 1, **more: Any
) -> dict[str, Any]:
    """The report of a CPU with 8 cores."""
    s = {
        **dict.fromkeys(("matmul.fp32", "memory.triad", "memory.copy", "conv.training", "attention"), 1.0),
        **(scale or {}),
    }
    known: dict[str, Any] = {"device": "cpu", "noise": noise, "seed": seed}
    return report(
        [
            measured("matmul.fp32", 350 * s["matmul.fp32"], flop=2 * 2048.0**3, **known),
            measured("memory.triad", 60 * s["memory.triad"], **known),
            measured("memory.copy", 55 * s["memory.copy"], **known),
            measured("conv.training", 120 * s["conv.training"], flop=4e9, **known),
            measured("attention", 90 * s["attention"], flop=3e9, **known),
        ],
        target="cpu",
        **more,
    )


def months(*scales: dict[str, float], target: str = "a100", **more: Any) -> list[StoredReport]:
    """A graded report for each month; the last one has changed packages."""
    out = []
    for n, scale in enumerate(scales):
        packages = {**PACKAGES, "nvidia-cublas-cu12 (pip)": "12.9.0.2"} if n == len(scales) - 1 else PACKAGES
        made = a100(
            scale,
            seed=n,
            digest=f"sha256:{n:x}" + "0" * 63,
            started=f"2026-{n + 8:02}-01T06:00:00Z",
            tag=f"26.{n + 8:02}",
            packages=packages,
            target=target,
            **more,
        )
        out.append(
            StoredReport(
                grade(made, references(), Gpu(vendor="nvidia", architectures=("sm_80",))),
                f"{target}-{n}.json",
            )
        )
    return out


def rich() -> dict[str, Any]:
    """A report with every field that the benchmark and builder write, on two GPUs of one node."""
    load: dict[str, Any] = {
        "clock_mhz": 1755,
        "power_w": 690.5,
        "temperature_c": 64,
        "throttled": ["power cap"],
    }
    state = {**load, "clock_max_mhz": 1980, "ecc": True, "ecc_uncorrected": 0}
    devices = [
        {
            **A100_40,
            "rank": n,
            "host": HOST,
            "uuid": f"GPU-{n}234abcd-0000-4000-8000-123456789abc",
            "power_limit_w": 400.0,
            "driver": "580.82.07",
            "mig": False,
            "after": state,
        }
        for n in range(2)
    ]
    bf16 = ranked("matmul.bf16", (248e3, 246e3), size=8192, backend="flash", **load)
    bf16["sizes"] = [{"size": 8192, "median_gflop_per_s": 248e3}]
    for rank in bf16["ranks"]:
        rank |= {"host": HOST, **load}
    reduce = measured("allreduce.node", 230.0, algorithm="nvls", members=2, device="cuda:0")
    made = report(
        [bf16, reduce, measured("memory.copy", 1390.0)],
        devices=devices,
        ranks=2,
        tag="26.11",
        packages={"torch (pip)": "2.13.0+cu130", "nvidia-cublas-cu12 (pip)": "12.8.4.1", "secret-lib": "1"},
    )
    made["facts"] |= {
        "host": HOST,
        "python": {"version": "3.12.3", "executable": f"/home/{USER}/bin/python", "prefix": f"/home/{USER}"},
        "system": {
            "machine": "x86_64",
            "kernel": "5.14.21-150500.55_13.0-cray_shasta_c",
            "glibc": "2.39",
            "distribution": "Ubuntu 24.04.1 LTS",
            "uid": 30417,
            "time_zone": "CET",
        },
        "memory": {"total_bytes": 512 << 30, "shm_bytes": 256 << 30},
        "variables": {
            "HOME": f"/users/{USER}",
            "TZ": "Europe/Zurich",
            "LD_PRELOAD": f"/users/{USER}/x.so",
            "CUDA_VISIBLE_DEVICES": "GPU-1234abcd-0000-4000-8000-123456789abc,1",
            "NCCL_SOCKET_IFNAME": "hsn0,hsn1",
            "NCCL_NET": "AWS OFI",
            "OMP_NUM_THREADS": "8",
            "FI_PROVIDER": f"{USER}",
            "SLURM_JOB_ACCOUNT": "project_465000000",
            "SLURM_STEP_NODELIST": f"{HOST},nid004218",
        },
        "device_files": ["/dev/nvidia0"],
        "driver": "580.82.07",
        "torch": {
            **{"version": "2.13.0+cu130", "build": "CUDA", "cuda": "13.0", "hip": None, "cudnn": 91002},
            "path": f"/users/{USER}/torch",
        },
    }
    made["budget_s"] = 90.0
    return grade(made, references(), Gpu(vendor="nvidia", architectures=("sm_80",)), 2)
