"""The key ``gpu``: what people write for an architecture, and what torch calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from builder.lock.config.site import Gpu

DEVICES = yaml.safe_load((Path(__file__).parents[4] / "builder/deliver/smoke/reference.yml").read_text())[
    "devices"
]


def problem(written: str) -> str:
    """What is wrong with an architecture."""
    with pytest.raises(ValidationError) as caught:
        Gpu(vendor="nvidia", architectures=(written,))
    return str(caught.value.errors()[0]["msg"])


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device["id"])
@pytest.mark.parametrize("form", ["name", "id", "model"])
def test_models(device: dict[str, str], form: str) -> None:
    """Every GPU that the smoke test knows, by its name, and as in nvidia-smi without the maker."""
    written = {**device, "model": re.sub("(NVIDIA|AMD Instinct|AMD Radeon) ", "", device["name"])}[form]
    assert problem(written).endswith(f"write {device['architecture']}")
    Gpu(vendor="nvidia", architectures=(device["architecture"],))


@pytest.mark.parametrize(
    ("written", "architecture"),
    [("8.0", "sm_80"), ("90", "sm_90"), ("compute_86", "sm_86"), ("SM80", "sm_80"), ("hopper", "sm_90")],
)
def test_other_forms(written: str, architecture: str) -> None:
    """Numbers of TORCH_CUDA_ARCH_LIST and of nvcc, and names of generations."""
    assert problem(written).endswith(f"write {architecture}")


def test_unknown() -> None:
    assert "write sm_80 for an A100" in problem("voodoo2") and "gfx90a for an MI250X" in problem("")
    for right in ("sm_80", "sm_90a", "sm_100f", "gfx90a", "gfx942:sramecc+:xnack-"):
        Gpu(architectures=(right,))
