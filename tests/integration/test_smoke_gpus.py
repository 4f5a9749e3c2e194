"""Whole runs of the benchmark on GPUs that are the CPU, from its start to the page that shows the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builder.cli.terminal import fitted
from builder.deliver.smoke.ab import compare_rounds
from builder.deliver.smoke.abrun import Side
from builder.deliver.smoke.changes import compare
from builder.deliver.smoke.grade import grade
from builder.deliver.smoke.page import render as render_page
from builder.deliver.smoke.page import view
from builder.deliver.smoke.reference import references
from builder.deliver.smoke.reports import StoredReport
from builder.deliver.smoke.run import SmokeReport
from builder.deliver.smoke.share import contents, share
from builder.deliver.smoke.table import render, render_ab, render_changes
from builder.lock.config.site import Gpu
from tests.support.cpu_as_gpu import run_on_gpus
from tests.support.schema import check_report
from tests.support.smoke import Result

pytestmark = pytest.mark.heavy
#: Their result depends on this machine: how it is set up, and what else runs on it.
OF_MACHINE = {
    "cpu.affinity", "memory.shm", "nccl.interface", "python.path",
    "system.home", "system.tmp", "time.budget",
}  # fmt: skip
#: What a healthy machine with one GPU leaves out.
NO_RECIPE = {"torch.architectures", "imports", "command"}
ALONE = {"nccl.transport", "allreduce.network", "allreduce.node"}


def check(result: Result, skipped: set[str]) -> None:
    """Everything was measured and passed, on GPUs, except for this."""
    check_report(result.report)
    items = [*result.report["probes"], *result.report["measurements"]]
    found = {item["id"]: item["status"] for item in items if item["id"] not in OF_MACHINE}
    assert {name for name, status in found.items() if status == "skip"} == skipped, result.table
    assert {status for status in found.values()} == {"pass", "skip"}, result.table
    for item in result.report["measurements"]:
        on_host = item["id"] == "torch.import_time"
        if item["status"] == "pass" and not on_host:
            assert item["device"].startswith("cuda:") and item["correctness"]["ok"], item
            assert all(re.fullmatch(r"cuda:\d", rank["device"]) for rank in item.get("ranks", [])), item


def check_figures(result: Result) -> None:
    """The figures are those of the virtual clock, so each of them counts what it should."""
    for name, unit, expected in (
        ("matmul.bf16", "gflop_per_s", 720e3),
        ("matmul.fp16", "gflop_per_s", 700e3),
        ("matmul.fp32", "gflop_per_s", 50e3),
        ("matmul.tf32", "gflop_per_s", 400e3),
        ("matmul.fp64", "gflop_per_s", 60e3),
        ("matmul.fp8", "gflop_per_s", 1400e3),
        ("memory.copy", "gb_per_s", 3900),
        ("memory.triad", "gb_per_s", 3900),
        ("transfer.h2d_pinned", "gb_per_s", 54),
        ("transfer.d2h_pinned", "gb_per_s", 54),
    ):
        item = result.measurement(name)
        assert item["median_" + unit] == pytest.approx(expected, rel=1e-3), (name, item)


def shown(report: dict[str, Any], vendor: str) -> str:
    """All that people see of two runs of a report: table, comparisons, page, and what they share."""
    runs = []
    for month in ("10", "11"):
        image = {
            "digest": f"sha256:{month}" + "0" * 62,
            "runner": "docker",
            "target": "x",
            "tag": f"26.{month}",
        }
        made = {**report, "image": image, "started": f"2026-{month}-01T00:00:00Z"}
        runs.append(grade(json.loads(json.dumps(made)), references(), Gpu(vendor=vendor)))
        check_report(runs[-1])
    old, new = (StoredReport(run, "run.json") for run in runs)
    basis = {finding["id"]: finding["status"] for finding in runs[1]["grade"]["findings"]}
    assert basis["matmul.bf16"] == basis["memory.copy"] == "pass", basis
    assert basis["transfer.h2d_pinned"] == "skip", "no rank was bound to the NUMA node of a made-up GPU"

    tables = [render(SmokeReport(runs[1]["verdict"], runs[1], "docker", new.digest, 33.0), everything=True)]
    comparison = compare([new], [old])
    assert not comparison.changed
    tables.append(render_changes(comparison, "26.10"))
    result = compare_rounds([[runs[0], runs[1], runs[1], runs[0]]] * 3)
    assert result.verdict == "same", result.notes
    sides = {"old": Side("26.10", old.digest), "new": Side("build", new.digest)}
    tables.append(render_ab(result, sides))
    page = render_page([view("x", [old, new], ())], {}, made="now", histories={})
    lines = [line for table in tables for line in fitted(table, 1000)]
    return "\n".join([*lines, page, *contents(share(runs))])


def test_cuda(tmp_path: Path) -> None:
    """One H200, with NVML."""
    result = run_on_gpus(tmp_path)
    check(result, NO_RECIPE | ALONE)
    check_figures(result)
    text = shown(result.report, "nvidia")
    assert "720 TFLOP/s" in text and "1,400 MHz, 700 W, 61 °C" in text and "NVIDIA H200" in text


def test_two_ranks(tmp_path: Path) -> None:
    """Two H200, without NVML: everything that several GPUs do, and nothing from the driver."""
    result = run_on_gpus(tmp_path, "--all-gpus", "--device-only", gpus=2, driver=False)
    of_driver = {"gpu.ecc", "gpu.nvlink", "gpu.clocks"}
    check(
        result,
        NO_RECIPE - {"imports", "command"} | of_driver | {"allreduce.network"},
    )
    assert result.report["launch"] == {"ranks": 2, "nodes": 1, "by": "spawn"}
    summed = result.measurement("allreduce.node")
    assert (summed["backend"], summed["algorithm"], len(summed["ranks"])) == ("nccl", "ring", 2)
    assert result.probe("nccl.transport")["seen"].endswith("network: IB, between GPUs: P2P/IPC, sums by ring")
    assert [device["rank"] for device in result.report["facts"]["devices"]] == [0, 1]
    assert "2 x NVIDIA H200" in shown(result.report, "nvidia")


def test_hip(tmp_path: Path) -> None:
    """One MI300X, with the kernel's sensors."""
    result = run_on_gpus(tmp_path, "--device-only", build="HIP")
    skipped = {"torch.architectures", "gpu.ecc", "gpu.nvlink"}
    check(result, skipped | ALONE)
    check_figures(result)
    assert result.report["facts"]["torch"]["build"] == "HIP"
    assert "2,100 MHz, 690 W, 58 °C" in shown(result.report, "amd")
