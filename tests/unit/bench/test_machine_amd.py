"""Sensors of AMD GPUs, from a made sysfs tree."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from builder.bench.core import Item
from builder.bench.machine.amd import AmdGpu, throttled_between
from tests.unit.bench.conftest import WriteFile

DEVICE = "/sys/bus/pci/devices/0000:c1:00.0"
HWMON = f"{DEVICE}/hwmon/hwmon5"


def sensors(root: WriteFile, **files: str) -> None:
    for name, text in files.items():
        root(f"{HWMON}/{name}", text)


def metrics(tmp_path: Path, version: tuple[int, int], size: int, *fields: tuple[int, str, int]) -> None:
    """Writes gpu_metrics with these fields, (offset, format, value); all others are unknown."""
    blob = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", blob, 0, size, *version)
    for offset, kind, value in fields:
        struct.pack_into("<" + kind, blob, offset, value)
    path = tmp_path / DEVICE.lstrip("/") / "gpu_metrics"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)


def test_mi250x(root: WriteFile) -> None:
    """The hot spot counts: its temperature is what slows a GPU down."""
    sensors(
        root,
        temp1_input="45000", temp1_label="edge", temp2_input="61000", temp2_label="junction",
        temp3_input="52000", temp3_label="mem", power1_average="480000000", freq1_input="1650000000",
    )  # fmt: skip
    assert AmdGpu(DEVICE, "gfx90a").sample() == {
        "clock_mhz": 1650.0, "power_w": 480.0, "temperature_c": 61.0, "memory_temperature_c": 52.0,
    }  # fmt: skip


def test_second_gcd(root: WriteFile) -> None:
    """The second GCD of a MI250X reports 0 W and a limit of 0 W; newer drivers hide both."""
    sensors(root, power1_average="0", power1_cap="0", freq1_input="800000000")
    gpu = AmdGpu(DEVICE, "gfx90a")
    assert gpu.sample() == {"clock_mhz": 800.0} and gpu.identity() == {}


def test_mi300(root: WriteFile) -> None:
    """MI300 has no edge and no average; a file can be empty where the query fails."""
    sensors(
        root,
        temp2_input="58000", temp2_label="junction", temp3_input="49000", temp3_label="mem",
        power1_input="690000000", power1_cap="\n", freq1_input="2100000000",
    )  # fmt: skip
    gpu = AmdGpu(DEVICE, "gfx942")
    assert gpu.sample()["temperature_c"] == 58.0 and gpu.sample()["power_w"] == 690.0
    assert gpu.identity() == {}


def test_one_temperature_without_label(root: WriteFile) -> None:
    sensors(root, temp1_input="40000")
    assert AmdGpu(DEVICE, "gfx906").sample() == {"temperature_c": 40.0}


def test_virtual_function(root: WriteFile) -> None:
    """Virtual machines with a part of a GPU have no sensors at all."""
    assert AmdGpu(DEVICE, "gfx942").state() == {}


@pytest.mark.parametrize(
    ("architecture", "bits", "found"),
    [
        ("gfx90a", 0, {"throttled": []}),
        ("gfx90a", 1 << 2 | 1 << 36, {"throttled": ["power cap", "heat"]}),
        ("gfx908", 1 << 16, {"throttled": ["power cap"]}),  # the limit of the current
        ("gfx90a", 2**64 - 1, {}),
        ("gfx1100", 1 << 36, {}),  # reported always, also at idle
    ],
)
def test_bits(architecture: str, bits: int, found: Item, tmp_path: Path, root: WriteFile) -> None:
    metrics(tmp_path, (1, 3), 120, (112, "Q", bits))
    assert AmdGpu(DEVICE, architecture).sample() == found


@pytest.mark.parametrize(("content", "size", "offset"), [(6, 1664, 32), (7, 2208, 40), (8, 3872, 40)])
def test_counters(content: int, size: int, offset: int, tmp_path: Path, root: WriteFile) -> None:
    fields = [(offset + 4 * place, "I", 100 + place) for place in range(6)]
    metrics(tmp_path, (1, content), size, *fields)
    residency = AmdGpu(DEVICE, "gfx942").sample()["residency"]
    assert residency == {
        "time": 100, "heat (hardware)": 101, "power cap": 102, "heat": 103,
        "heat (voltage regulator)": 104, "heat (memory)": 105,
    }  # fmt: skip
    assert "residency" not in AmdGpu(DEVICE, "gfx942").state()


@pytest.mark.parametrize(
    ("version", "size"), [((1, 4), 288), ((1, 5), 360), ((1, 9), 400), ((2, 3), 152), ((1, 3), 100)]
)
def test_other_versions(version: tuple[int, int], size: int, tmp_path: Path, root: WriteFile) -> None:
    """MI300's first drivers write 0, whatever happens; 1.9 has no fixed places: throttling is unknown."""
    metrics(tmp_path, version, size)
    assert AmdGpu(DEVICE, "gfx90a").sample() == {}


def test_damaged_metrics(tmp_path: Path, root: WriteFile) -> None:
    """A file of another length than it says, or of none."""
    metrics(tmp_path, (1, 6), 1664)
    path = tmp_path / DEVICE.lstrip("/") / "gpu_metrics"
    for blob in (path.read_bytes()[:-1], b"", b"\x80\x06\x01"):
        path.write_bytes(blob)
        assert AmdGpu(DEVICE, "gfx942").sample() == {}


def test_throttled_between() -> None:
    """Counters are unsigned numbers of 32 bits; less than 1 % of the time is no throttling."""
    first = {"time": 2**32 - 10, "heat": 5, "power cap": 2**32 - 1}
    assert throttled_between(first, {"time": 990, "heat": 10, "power cap": 600}) == ["power cap"]
    assert throttled_between(first, {"time": 990, "heat": 16, "power cap": 2**32 - 1}) == ["heat"]
    assert throttled_between(first, dict(first)) is None, "the driver has not read it again"
