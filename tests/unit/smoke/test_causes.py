"""Causes of low values: variables, and the state of the GPU."""

from __future__ import annotations

import pytest

from builder.smoke.causes import slowing_variables, state_of
from builder.smoke.values import values_of
from tests.support.reports import ranked, report


@pytest.mark.parametrize(
    ("name", "value", "measurement", "slows"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0", "matmul.tf32", True),
        ("NVIDIA_TF32_OVERRIDE", "1", "matmul.tf32", False),
        ("CUDA_LAUNCH_BLOCKING", "1", "attention", True),
        ("CUDA_LAUNCH_BLOCKING", "0", "attention", False),
        ("AMD_SERIALIZE_KERNEL", "3", "memory.copy", True),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", "matmul.bf16", True),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100", "matmul.bf16", False),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", "transfer.h2d_pinned", False),
        ("HSA_ENABLE_SDMA", "0", "transfer.d2h_pinned", True),
        ("NCCL_NVLS_ENABLE", "0", "allreduce.node", True),
        ("NCCL_SOCKET_IFNAME", "hsn0", "allreduce.node", False),
        ("OMP_NUM_THREADS", "1", "matmul.bf16", False),
    ],
)
def test_variables(name: str, value: str, measurement: str, slows: bool) -> None:
    """A variable counts with the values and for the measurements that it slows down."""
    given = report([])
    given["facts"]["variables"] = {name: value}
    assert slowing_variables(given, measurement) == ([f"{name}={value}"] if slows else [])


@pytest.mark.parametrize("variables", [None, "x", [], {"CUDA_LAUNCH_BLOCKING": None}])
def test_odd_variables(variables: object) -> None:
    """Variables of the wrong type are ignored."""
    given = report([])
    given["facts"]["variables"] = variables
    assert slowing_variables(given, "matmul.bf16") == []


def test_state_of_ranks() -> None:
    """Each rank has its own state; without one, that of its GPU after the measurements counts."""
    item = ranked("matmul.bf16", (1.0, 1.0))
    item["ranks"][1]["clock_mhz"] = 600.0
    facts = {"after": {"clock_mhz": 1400, "clock_max_mhz": 1410}}
    states = [state_of(value, item, facts) for value in values_of(item)]
    assert states == ["clock 1400 of 1410 MHz", "clock 600 of 1410 MHz"]
