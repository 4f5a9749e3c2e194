"""TensorFlow and JAX: probes and measurements, with a stand-in that computes with NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from builder.bench.core import Run
from builder.bench.examine import perform
from builder.bench.machine.facts import facts
from builder.bench.measurements import MEASUREMENTS
from builder.bench.probes import framework as probes
from tests.support.smoke import ask_run, make_run


class Numbers:
    """A framework on NumPy. ``wrong`` is added to each product."""

    name = "jax"

    def __init__(self, gpus: int = 0, build: str = "CPU", wrong: float = 0.0) -> None:
        self.module = SimpleNamespace(__version__="1.2", __file__="/opt/conda/lib/jax/__init__.py")
        self.gpus, self.build, self.wrong = gpus, build, wrong
        self.runtime = "12.8" if gpus else ""
        self.devices: list[str] = []

    def describe_gpu(self, index: int) -> dict[str, Any]:
        return {"name": "GPU", "architecture": "sm_80"}

    def product(self, a: Any, b: Any, device: str) -> Any:
        self.devices.append(device)
        return a @ b + numpy.float32(self.wrong)


def made(framework: Numbers | None = None, **options: Any) -> Run:
    found = make_run(None, framework="jax", **options)
    found.framework = framework
    return found


def measured(name: str, run_: Run) -> Any:
    measurement = next(m for m in MEASUREMENTS if m.id == name)
    return perform(name, lambda: dict(measurement.look(run_)))


def test_product() -> None:
    """One product, which must be right; nothing is timed."""
    item = measured("product", made(Numbers(), expect="none"))
    assert item["status"] == "pass" and item["device"] == "cpu" and item["correctness"]["ok"]
    assert not any(key.startswith("median_") for key in item)


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_wrong_result(wrong: float) -> None:
    item = measured("product", made(Numbers(wrong=wrong), expect="none"))
    assert item["status"] == "fail" and "largest error" in item["seen"]


def test_on_gpus() -> None:
    """With GPUs each of them computes; the facts describe them."""
    found = made(Numbers(gpus=2, build="CUDA"), expect="nvidia")
    assert measured("product", found)["seen"] == "right on cuda:0, cuda:1"
    assert found.framework.devices == ["cuda:0", "cuda:1"]
    known = facts(found)
    assert known["framework"]["runtime"] == "12.8" and len(known["devices"]) == 2
    assert ask_run("jax.devices", found).seen == "2: GPU (sm_80), GPU (sm_80)"


@pytest.mark.parametrize(
    ("framework", "expect", "build", "devices"),
    [
        (Numbers(), "none", "pass", "skip"),
        (Numbers(), "nvidia", "fail", "fail"),
        (Numbers(1, "CUDA"), "nvidia", "pass", "pass"),
        (Numbers(0, "CUDA"), "nvidia", "pass", "fail"),
        (None, "nvidia", "skip", "skip"),
    ],
)
def test_vendor(framework: Numbers | None, expect: str, build: str, devices: str) -> None:
    """The build and the GPUs are those of the recipe."""
    found = made(framework, expect=expect)
    assert ask_run("jax.build", found).status == build
    assert ask_run("jax.devices", found).status == devices


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ModuleNotFoundError("No module named 'jax'", name="jax"), "jax is not installed in"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "jax does not import: No module"),
    ],
)
def test_import(monkeypatch: pytest.MonkeyPatch, error: Exception, seen: str) -> None:
    """An import that fails is a finding with advice."""

    def broken(name: str) -> Any:
        raise error

    monkeypatch.setattr(probes, "load_framework", broken)
    found = ask_run("jax.import", made())
    assert found.status == "fail" and found.seen.startswith(seen) and found.advice
    monkeypatch.setattr(probes, "load_framework", lambda name: Numbers(2, "CUDA"))
    run_ = made()
    assert "jax 1.2 in" in ask_run("jax.import", run_).seen and run_.build == "CUDA"
