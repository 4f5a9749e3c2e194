"""Which wheel of a package is locked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import SolveError
from builder.core.settings import Settings
from builder.lock.config.recipe import Recipe
from builder.lock.request import SolveRequest
from builder.lock.spec import Environment, Spec
from builder.lock.wheels import WheelChooser


def chooser(root: Path, *specs: Spec) -> WheelChooser:
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": root, "source": root}
    environment = Environment(root / "e.yml", "", ("c",), (), specs)
    settings = Settings.from_environment({"HOME": str(root)})
    request = SolveRequest(Recipe.model_validate(values), environment, settings)
    return WheelChooser(request, "3.11.2", ())


def wheel(tag: str, digit: str) -> dict[str, Any]:
    url = f"https://h.example/tool-1-{tag}.whl"
    return {"url": url, "hashes": {"sha256": digit * 64}}


PACKAGE = {
    "name": "tool",
    "wheels": [wheel("py3-none-any", "a"), wheel("cp311-cp311-manylinux2014_x86_64", "b")],
}


def test_hashes_of_a_requirement(tmp_path: Path) -> None:
    """Only a wheel with one of them is locked (--hash); without hashes the best one is."""
    assert chooser(tmp_path, Spec("tool", "tool", "r:1")).locked(PACKAGE).sha256 == "b" * 64
    named = Spec("tool", "tool", "r.txt:2", hashes=("sha256:" + "a" * 64, "sha256:" + "c" * 64))
    assert chooser(tmp_path, named).locked(PACKAGE).sha256 == "a" * 64
    other = Spec("tool", "tool", "r.txt:2", hashes=("sha256:" + "c" * 64,))
    with pytest.raises(SolveError, match="r.txt:2: no wheel of tool has a hash that the requirement names"):
        chooser(tmp_path, other).locked(PACKAGE)
