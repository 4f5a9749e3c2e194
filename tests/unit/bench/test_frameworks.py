"""TensorFlow and JAX: probes and measurements, with a stand-in that computes with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from builder.bench.core import Run
from builder.bench.examine import perform
from builder.bench.frameworks.base import Framework
from builder.bench.machine.facts import facts
from builder.bench.measurements import MEASUREMENTS
from builder.bench.probes import PROBES
from builder.bench.probes import framework as probes
from tests.support.smoke import ask_run, make_run, run


class Numbers(Framework):
    """A framework on NumPy. ``wrong`` is added to each product, ``stuck`` learns nothing."""

    name = "jax"

    def __init__(self, gpus: int = 0, build: str = "CPU", wrong: float = 0.0, stuck: bool = False) -> None:
        self.module = SimpleNamespace(__version__="1.2", __file__="/opt/conda/lib/jax/__init__.py")
        self._gpus, self._build, self.wrong, self.stuck = gpus, build, wrong, stuck
        self.devices: list[str] = []

    build = property(lambda self: self._build)  # type: ignore[assignment]
    runtime = property(lambda self: "12.8" if self._gpus else "")  # type: ignore[assignment]
    gpus = property(lambda self: self._gpus)  # type: ignore[assignment]

    def describe_gpu(self, index: int) -> dict[str, Any]:
        return {"name": "GPU", "architecture": "sm_80"}

    def product(self, a: Any, b: Any, precision: str, device: str) -> tuple[Callable[[], None], Any]:
        self.devices.append(device)
        return (lambda: None), a @ b + numpy.float32(self.wrong)

    def train(self, weights: list[Any], rate: float, device: str) -> Any:
        state = [weight.copy() for weight in weights]
        speeds = [0 * weight for weight in weights]

        def forward(images: Any) -> Any:
            hidden = numpy.maximum(images @ state[0] + state[1], 0)
            return hidden, hidden @ state[2] + state[3]

        def step(images: Any, labels: Any) -> float:
            hidden, scores = forward(images)
            odds = numpy.exp(scores - scores.max(1, keepdims=True))
            odds /= odds.sum(1, keepdims=True)
            rows = numpy.arange(len(labels))
            loss = -numpy.log(odds[rows, labels]).mean()
            odds[rows, labels] -= 1
            odds /= len(labels)
            back = (odds @ state[2].T) * (hidden > 0)
            gradients = [images.T @ back, back.sum(0), hidden.T @ odds, odds.sum(0)]
            for number, gradient in enumerate(gradients):
                speeds[number] = 0.9 * speeds[number] + gradient
                state[number] = state[number] - (0 if self.stuck else rate) * speeds[number]
            return float(loss)

        return step, lambda images: forward(images)[1].argmax(1)


def made(framework: Framework | None = None, **options: Any) -> Run:
    found = make_run(None, framework="jax", **options)
    found.framework = framework
    return found


def measured(name: str, run_: Run) -> Any:
    measurement = next(m for m in MEASUREMENTS if m.id == name)
    return perform(name, lambda: dict(measurement.look(run_)))


def test_measurements() -> None:
    """A product is checked and timed, a training reaches its accuracy."""
    item = measured("matmul.fp32", made(Numbers(), expect="none", budget=3))
    assert item["status"] == "pass" and item["device"] == "cpu" and item["correctness"]["ok"]
    assert item["median_gflop_per_s"] > 0 and item["sizes"][0]["size"] == 512
    item = measured("training", made(Numbers(), expect="none"))
    assert item["status"] == "pass" and item["correctness"]["value"] > 0.9, item
    assert item["last_loss"] < item["first_loss"]
    assert measured("matmul.bf16", made(Numbers(), expect="none"))["status"] == "skip"


def test_wrong_results() -> None:
    item = measured("matmul.fp32", made(Numbers(wrong=1.0), expect="none"))
    assert item["status"] == "fail" and "is off by" in item["seen"]
    item = measured("matmul.fp32", made(Numbers(wrong=float("nan")), expect="none"))
    assert item["status"] == "fail"
    item = measured("training", made(Numbers(stuck=True), expect="none"))
    assert item["status"] == "fail" and "accuracy" in item["seen"]


def test_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With GPUs they are what is measured; the facts describe them."""
    monkeypatch.setattr("builder.bench.measurements.products.SIZES", {"gpu": (256,), "cpu": ()})
    found = made(Numbers(gpus=2, build="CUDA"), expect="nvidia")
    assert measured("matmul.bf16", found)["device"] == "cuda:0"
    known = facts(found)
    assert known["framework"]["runtime"] == "12.8" and len(known["devices"]) == 2
    found.framework.devices.clear()
    assert ask_run("jax.devices", found).seen == "2: GPU (sm_80), GPU (sm_80)"
    assert found.framework.devices == ["cuda:0", "cuda:1"], "each GPU computes"
    found.framework.wrong = 9.0
    assert "GPU 0: a matrix product is off" in ask_run("jax.devices", found).seen


@pytest.mark.parametrize(
    ("framework", "expect", "build", "devices"),
    [
        (Numbers(), "none", "pass", "skip"),
        (Numbers(), "auto", "pass", "skip"),
        (Numbers(), "nvidia", "fail", "fail"),
        (Numbers(1, "CUDA"), "nvidia", "pass", "pass"),
        (Numbers(0, "CUDA"), "nvidia", "pass", "fail"),
        (Numbers(1, "CUDA"), "amd", "fail", "pass"),
        (Numbers(1, "CUDA"), "none", "warn", "skip"),
        (None, "nvidia", "skip", "skip"),
    ],
)
def test_vendor(framework: Numbers | None, expect: str, build: str, devices: str) -> None:
    """The build and the GPUs are those of the recipe."""
    found = made(framework, expect=expect)
    assert ask_run("jax.build", found).status == build
    assert ask_run("jax.devices", found).status == devices


def test_number_of_gpus() -> None:
    found = ask_run("jax.devices", made(Numbers(1, "CUDA"), expect="nvidia", devices=4))
    assert found.status == "fail" and "4 were expected" in found.advice


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ModuleNotFoundError("No module named 'jax'", name="jax"), "jax is not installed in"),
        (ModuleNotFoundError("No module named 'x'", name="x"), "jax does not import: No module"),
        (OSError("libcudart.so.12: cannot open"), "jax does not import: OSError: libcudart"),
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


@pytest.mark.parametrize("name", ["tensorflow", "jax"])
def test_missing(name: str) -> None:
    """The benchmark without the framework: it fails, and no probe of torch is in the report."""
    result = run("--framework", name, "--expect", "none", python=["-S"])
    assert result.verdict == "fail" and result.failed == {f"{name}.import"}
    ids = {item["id"] for item in result.report["probes"] + result.report["measurements"]}
    assert not any(found.startswith(("torch.", "gpu.", "nccl.", "allreduce.")) for found in ids)
    assert result.report["test"] == {"framework": name}


def test_parts_of_each_test() -> None:
    """Every probe and measurement belongs to a test, and those of torch to no other one."""
    for item in (*PROBES, *MEASUREMENTS):
        assert item.of and set(item.of) <= {"torch", "tensorflow", "jax", "none"}
        if item.id.startswith(("torch.", "nccl.", "allreduce.")):
            assert item.of == ("torch",)
