"""The picture of the README shows what the commands print today."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.support.docsite import ROOT

pytestmark = [pytest.mark.network, pytest.mark.heavy]


def test_words_of_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same commands print the same words, except for numbers: else ``make pictures``."""
    monkeypatch.syspath_prepend(ROOT / "scripts/docs")
    pictures = importlib.import_module("pictures")
    pictures.first_image(tmp_path / "picture.svg")
    now = pictures.words((tmp_path / "picture.svg").read_text())
    assert pictures.words((ROOT / "docs/pictures/first-image.svg").read_text()) == now
