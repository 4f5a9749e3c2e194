"""The facts in the report."""

from __future__ import annotations

from builder.bench.machine.facts import facts
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


def test_gpu(nvml: FakeNvml) -> None:
    """What tells a GPU from another one of the same name, and what slows it down."""
    nvml.set(limit=600000)
    (gpu,) = facts(make_run(fake_torch("CUDA")))["devices"]
    assert gpu["name"] == "GPU"
    assert gpu["uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert (gpu["power_limit_w"], gpu["mig"]) == (600.0, False)
