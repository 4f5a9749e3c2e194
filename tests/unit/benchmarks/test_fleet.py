"""The simulated fleet: its noise is the one it is given, and is found again in its reports."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.fleet import ASSUMED, Device, Noise, measured, noise_json, noise_of, report
from tests.support.reports import report as complete_report


def write_reports(folder: Path, noise: dict[str, Noise], gpus: int, runs: int) -> None:
    """Reports of a simulated fleet, complete enough to be read from files."""
    rng = random.Random(5)
    folder.mkdir()
    for gpu in range(gpus):
        device = Device(rng, noise)
        for run in range(runs):
            made = report([device], rng, noise, {}).report
            measurements = [{**m, "seen": "", "advice": ""} for m in made["measurements"]]
            whole = complete_report(measurements, devices=made["facts"]["devices"])
            whole["facts"]["host"] = made["facts"]["host"]
            (folder / f"{gpu}-{run}.json").write_text(json.dumps(whole))


def test_measured_noise(tmp_path: Path) -> None:
    """The noise is computed from reports: 20 GPUs with 5 runs, within five standard errors."""
    noise = {"matmul.bf16": Noise(0.02, 0.05), "dataloader": Noise(0.1, 0.2, on_gpu=False)}
    write_reports(tmp_path / "a100", noise, gpus=20, runs=5)
    found = measured([tmp_path / "a100"])
    for name, n in noise.items():
        assert found[name].run == pytest.approx(n.run, rel=5 / (2 * 80) ** 0.5)
        assert found[name].device == pytest.approx(n.device, rel=5 / (2 * 19) ** 0.5)
    assert found["matmul.bf16"].shared == ASSUMED["matmul.bf16"].shared  # of one figure nothing is known
    assert found["memory.copy"] == ASSUMED["memory.copy"]  # not in the reports


def test_too_few_reports(tmp_path: Path) -> None:
    """Of fewer than five GPUs only the noise between runs is computed; of single runs nothing."""
    noise = {"matmul.bf16": Noise(0.02, 0.05)}
    write_reports(tmp_path / "few", noise, gpus=4, runs=5)
    found = measured([tmp_path / "few"])["matmul.bf16"]
    assert found.run != ASSUMED["matmul.bf16"].run and found.device == ASSUMED["matmul.bf16"].device
    write_reports(tmp_path / "single", noise, gpus=4, runs=1)
    assert measured([tmp_path / "single"]) == ASSUMED


def test_noise_file() -> None:
    """Noise survives a file."""
    assert noise_of(json.loads(json.dumps(noise_json(ASSUMED)))) == ASSUMED


def test_shared_noise(tmp_path: Path) -> None:
    """Power-limited figures of one GPU rise and fall together: over 60 GPUs, correlation 0.81."""
    noise = {name: ASSUMED[name] for name in ("matmul.bf16", "matmul.fp16")}
    write_reports(tmp_path / "a100", noise, gpus=60, runs=2)
    found = measured([tmp_path / "a100"])
    assert found["matmul.bf16"].shared == found["attention"].shared
    assert 0.7 < found["matmul.bf16"].shared < 1.0
