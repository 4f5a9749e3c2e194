"""The variables of URLs, and what a lock stores of a URL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.core.errors import SolveError
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs
from builder.lock.urls import public, unexpanded


def test_variables_of_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe, environment file and pip's configuration name variables; without the file only the others."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/$PIP_TOKEN")
    values = {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": tmp_path}
    recipe = Recipe.model_validate({**values, "pip": {"index_url": "https://i.example/$INDEX"}})
    found = ["https://i.example/$INDEX", "https://pip.example/$PIP_TOKEN"]
    assert sorted(Inputs.read(recipe).url_variables.sources) == found
    (tmp_path / "e.yml").write_text(
        "channels: ['https://c.example/t/$TOKEN/c', conda-forge]\ndependencies:\n- pip:\n"
        "  - --find-links $HOME/wheels\n  - --extra-index-url https://x.example/${EXTRA}\n"
    )
    more = ["https://c.example/t/$TOKEN/c", "https://x.example/${EXTRA}"]
    assert sorted(Inputs.read(recipe).url_variables.sources) == sorted([*found, *more])


def test_public() -> None:
    assert public("https://u:p@h.org/x.whl#sha256=ab") == "https://h.org/x.whl"
    assert public("https://h.org/x.whl?key=$TOKEN#a") == "https://h.org/x.whl?key=$TOKEN"
    with pytest.raises(SolveError, match=r"x\.whl\?key=\*\*\*: the query of this URL may hold a secret"):
        public("https://h.org/x.whl?key=S3CR3T")


def test_unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is replaced by its name; a literal user name with a dollar sign names nothing."""
    monkeypatch.setenv("TOKEN", "s3cr3t")
    monkeypatch.setenv("ml", "host")
    urls = ["https://h.org/$TOKEN/x", "https://robot$ml:pw@host"]
    assert unexpanded("https://h.org/s3cr3t/y https://host", urls) == "https://h.org/${TOKEN}/y https://host"
