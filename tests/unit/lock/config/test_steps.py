"""The key ``steps`` of a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from builder.lock.config.steps import Step


def test_forms() -> None:
    """One command or several; one may have several lines."""
    assert Step.model_validate({"run": "make"}).run == ("make",)
    assert Step.model_validate({"run": ["a", "b\n\tc\n"]}).run == ("a", "b\n\tc")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"run": "  "}, "is empty: write a shell command"),
        ({"run": "a\x00b"}, "control character U+0000"),
        ({"run": "git clone https://me:secret@host.example/x"}, "contains a password in a URL"),
        ({"run": "a", "env": {"HF_TOKEN": "x"}}, "HF_TOKEN looks like a credential"),
        ({"run": "a", "env": {"INDEX": "https://me:pw@host.example/"}}, "INDEX looks like a credential"),
    ],
)
def test_wrong(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Step.model_validate(data)
    assert message in str(caught.value)


def test_harmless_names() -> None:
    env = {"MONKEY": "1", "TOKENIZERS_PARALLELISM": "no", "URL": "https://host.example/x?v=1"}
    assert Step.model_validate({"run": "a", "env": env}).env == env
