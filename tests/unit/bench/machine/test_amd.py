"""Sensors of AMD GPUs, from a made sysfs tree."""

from __future__ import annotations

from builder.bench.machine.amd import AmdGpu
from tests.unit.bench.conftest import WriteFile

DEVICE = "/sys/bus/pci/devices/0000:c1:00.0"
HWMON = f"{DEVICE}/hwmon/hwmon5"


def sensors(root: WriteFile, **files: str) -> None:
    for name, text in files.items():
        root(f"{HWMON}/{name}", text)


def test_mi250x(root: WriteFile) -> None:
    """The hot spot counts: its temperature is what slows a GPU down."""
    sensors(
        root,
        temp1_input="45000", temp1_label="edge", temp2_input="61000", temp2_label="junction",
        temp3_input="52000", temp3_label="mem", power1_average="480000000", freq1_input="1650000000",
    )  # fmt: skip
    assert AmdGpu(DEVICE).sample() == {
        "clock_mhz": 1650.0, "power_w": 480.0, "temperature_c": 61.0,
    }  # fmt: skip


def test_second_gcd(root: WriteFile) -> None:
    """The second GCD of a MI250X reports 0 W and a limit of 0 W; newer drivers hide both."""
    sensors(root, power1_average="0", power1_cap="0", freq1_input="800000000")
    gpu = AmdGpu(DEVICE)
    assert gpu.sample() == {"clock_mhz": 800.0} and gpu.identity() == {}


def test_mi300(root: WriteFile) -> None:
    """MI300 has no edge and no average; a file can be empty where the query fails."""
    sensors(
        root,
        temp2_input="58000", temp2_label="junction", temp3_input="49000", temp3_label="mem",
        power1_input="690000000", power1_cap="\n", freq1_input="2100000000",
    )  # fmt: skip
    gpu = AmdGpu(DEVICE)
    assert gpu.sample()["temperature_c"] == 58.0 and gpu.sample()["power_w"] == 690.0
    assert gpu.identity() == {}
