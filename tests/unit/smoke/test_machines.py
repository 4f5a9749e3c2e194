"""What a value was measured on: the GPU by its uuid, and what disturbed it."""

from __future__ import annotations

from typing import Any

from builder.smoke.machines import Machine, disturbance, machine, machine_of
from builder.smoke.values import values_of
from tests.support.reports import A100_40, MI250X, cpu, measured, ranked, report


def test_gpu() -> None:
    """A GPU has its own facts; the driver of old reports is that of the node."""
    made = report([measured("matmul.bf16", 1.0)], devices=[{**A100_40, "uuid": "GPU-1"}])
    made["facts"]["driver"] = "550.54"
    measurement = made["measurements"][0]
    (value,) = values_of(measurement)
    assert machine(made, measurement, value) == Machine(
        "NVIDIA A100-SXM4-40GB", "GPU-1", "AMD EPYC 7763", "550.54"
    )


def test_ranks() -> None:
    """Each rank has the GPU that its facts name; without the ranks, that of its index."""
    devices = [{**A100_40, "rank": 1, "uuid": "b"}, {**MI250X, "rank": 0, "uuid": "a"}]
    measurement = ranked("matmul.bf16", [1.0, 2.0])
    made = report([measurement], devices=devices, ranks=2)
    found = [machine(made, measurement, value).device for value in values_of(measurement)]
    assert found == ["a", "b"]
    made = report([measurement], devices=[A100_40, MI250X], ranks=2)
    names = [machine_of(made, measurement, value) for value in values_of(measurement)]
    assert names == [A100_40["name"], MI250X["name"]]


def test_processor() -> None:
    """A processor is named with its cores; its device is the host."""
    made = cpu(cores=4)
    measurement = made["measurements"][0]
    (value,) = values_of(measurement)
    assert machine(made, measurement, value) == Machine("AMD EPYC 7763, 4 cores", "n017", "AMD EPYC 7763")


def test_changes() -> None:
    old = Machine("a GPU", "1", driver="550.54", power_limit_w=400.0)
    new = Machine("a GPU", "1", driver="580.65", power_limit_w=300.0)
    assert old.changes_to(new) == ("power limit 400 W -> 300 W", "driver 550.54 -> 580.65")
    assert old.changes_to(old) == () and old.changes_to(Machine("a GPU")) == ()


def disturbed(probes: tuple[str, ...] = (), *, host_bound: bool = False, **fields: Any) -> str:
    measurement = {**measured("matmul.bf16", 1.0), **fields}
    made = report([measurement], devices=[A100_40], probes=[(probe, "warn") for probe in probes])
    (value,) = values_of(measurement)
    return disturbance(made, measurement, value, host_bound=host_bound)


def test_disturbance() -> None:
    assert disturbed() == "" and disturbed(throttled=["power cap"]) == "" and disturbed(throttled=[]) == ""
    assert disturbed(("gpu.idle",)) == "other processes use the GPU"
    assert disturbed(("gpu.clocks",)) == "the GPU is slowed down"
    assert disturbed(throttled=["heat", "power brake"]) == "throttled by heat and power brake"
    assert disturbed(lost_fraction=0.4) == "it was interrupted for much of its time"
    assert disturbed(lost_fraction=0.2) == "" and disturbed(("machine.steady",)) == ""
    assert disturbed(("machine.steady",), host_bound=True) == "other processes used the processor"


def test_throttled_rank() -> None:
    """The reasons of one rank are not those of another."""
    measurement = ranked("matmul.bf16", [1.0, 2.0])
    measurement["ranks"][1]["throttled"] = ["heat"]
    made = report([measurement], devices=[A100_40, A100_40], ranks=2)
    found = [disturbance(made, measurement, v, host_bound=False) for v in values_of(measurement)]
    assert found == ["", "throttled by heat"]
