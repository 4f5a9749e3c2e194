"""The architecture of AMD GPUs where torch does not report it."""

from __future__ import annotations

import pytest

from builder.bench.machine.kfd import amd_architecture
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run
from tests.unit.bench.conftest import WriteFile

NODES = "/sys/class/kfd/kfd/topology/nodes"


def node(root: WriteFile, number: int, version: int) -> None:
    root(f"{NODES}/{number}/properties", f"cpu_cores_count 0\nsimd_count 440\ngfx_target_version {version}\n")


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (90008, "gfx908"), (100300, "gfx1030"), (110501, "gfx1151")],
)
def test_old_torch(version: int, name: str, root: WriteFile) -> None:
    """torch before 2.1 has no gcnArchName."""
    for number, found in enumerate((0, version, version)):  # the first node is the processor
        node(root, number, found)
    torch = fake_torch("HIP")
    del torch.cuda.get_device_properties(0).gcnArchName
    assert make_run(torch).architecture(0) == name


def test_unknown(root: WriteFile) -> None:
    assert amd_architecture() == "unknown"
    node(root, 1, 90010)
    node(root, 2, 110000)
    assert amd_architecture() == "unknown"
