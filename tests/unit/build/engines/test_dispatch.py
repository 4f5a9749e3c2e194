"""Which engine builds which target, and what happens without its program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines import dispatch
from builder.build.engines.dispatch import find_engine, run_engine
from builder.core.errors import RunnerError, UsageError
from tests.support.engines import request


@pytest.mark.parametrize(
    ("engine", "format", "others"),
    [("docker", "sif", "layered, apptainer, cotainr"), ("apptainer", "oci", "layered, docker")],
)
def test_wrong_format(tmp_path: Path, engine: str, format: str, others: str) -> None:
    """The error names the line of the recipe, and the engines that build the format."""
    with pytest.raises(UsageError) as caught:
        run_engine(find_engine(engine), request(tmp_path, format=format))
    assert f"recipes/t.yaml says: format: {format}" in caught.value.message
    assert f"--engine {others}" in caught.value.hint


@pytest.mark.parametrize(
    ("engine", "missing"),
    [("apptainer", "apptainer nor singularity"), ("cotainr", "cotainr is not installed")],
)
def test_engine_without_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, missing: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RunnerError) as caught:
        run_engine(find_engine(engine), request(tmp_path, format="sif"))
    assert (
        f"the engine {engine} does not work here" in caught.value.message and missing in caught.value.message
    )
    assert "--engine layered" in caught.value.hint


def test_foreign_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that run the image need a registered qemu for another processor; layered does not."""
    monkeypatch.setattr(dispatch, "host_architecture", lambda: "amd64")
    monkeypatch.setattr(dispatch, "is_registered", lambda architecture: False)
    with pytest.raises(RunnerError, match="the image is for arm64, this host is amd64") as caught:
        run_engine(find_engine("docker"), request(tmp_path, platform="linux-aarch64"))
    assert caught.value.hint.startswith("build with --engine layered")


@pytest.mark.parametrize(
    ("engine", "key", "recipe"),
    [
        ("docker", "steps:", {"steps": [{"run": "true"}]}),
        ("cotainr", "steps:", {"steps": [{"run": "true"}]}),
        ("cotainr", "python: base", {"python": "base"}),
        ("cotainr", "bytecode: none", {"bytecode": "none"}),
    ],
)
def test_ignored_keys_are_refused(tmp_path: Path, engine: str, key: str, recipe: dict[str, Any]) -> None:
    """An engine that cannot do what the recipe says does not build."""
    form = "oci" if engine == "docker" else "sif"
    with pytest.raises(UsageError, match=f"the engine {engine} does not support {key}") as caught:
        run_engine(find_engine(engine), request(tmp_path, format=form, **recipe))
    assert "--engine layered" in caught.value.hint
