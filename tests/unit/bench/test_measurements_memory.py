"""The size of the arrays for memory bandwidth."""

from __future__ import annotations

import pytest

from builder.bench.measurements.memory import _array_bytes
from tests.support.fake_torch import fake_torch
from tests.support.smoke import make_run


@pytest.mark.parametrize(("free_gib", "gib"), [(140, 4), (64, 4), (16, 2), (8, 1)])
def test_arrays_that_no_cache_holds(free_gib: int, gib: int) -> None:
    """4 GiB where an eighth of the free memory allows it: MI300X has a cache of 256 MiB."""
    torch = fake_torch("HIP", arch="gfx942")
    torch.cuda.mem_get_info = lambda index: (free_gib << 30, 192 << 30)
    assert _array_bytes(make_run(torch, expect="amd")) == gib << 30
