"""The key ``pip: {build: ...}``."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from builder.lock.config.recipe import Pip


def test_names_are_normalised() -> None:
    pip = Pip.model_validate({"build": {"Flash_Attn": {"env": {"MAX_JOBS": "2"}, "needs": ["ninja<2"]}}})
    assert list(pip.build) == ["flash-attn"] and pip.build["flash-attn"].needs == ("ninja<2",)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ({"a b": {}}, "'a b' is not the name of a Python package"),
        ({"a": {"needs": ["x = 1"]}}, "'x = 1' is not a pip requirement"),
        ({"a": {"env": {"HF_TOKEN": "x"}}}, "HF_TOKEN looks like a credential, and the settings of builds"),
    ],
)
def test_refused(build: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Pip.model_validate({"build": build})
