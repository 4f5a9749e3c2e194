"""Which engine builds which target, and what happens without its program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.engines import dispatch
from builder.engines.dispatch import ENGINES, find_engine, run_engine
from builder.errors import RunnerError, UsageError
from tests.support.engines import request


def test_finddocker_address() -> None:
    for name in ENGINES:
        assert find_engine(name).name == name
    with pytest.raises(UsageError, match=r"no engine named 'buildah'\n.*layered, docker, apptainer, cotainr"):
        find_engine("buildah")


@pytest.mark.parametrize(
    ("engine", "format", "message", "hint"),
    [
        (
            "docker",
            "sif",
            "the engine docker builds OCI images, and target t is a SIF",
            "layered, apptainer or cotainr",
        ),
        (
            "apptainer",
            "oci",
            "the engine apptainer builds SIFs, and target t is an OCI image",
            "layered or docker",
        ),
        (
            "cotainr",
            "oci",
            "the engine cotainr builds SIFs, and target t is an OCI image",
            "layered or docker",
        ),
    ],
)
def test_wrong_format(tmp_path: Path, engine: str, format: str, message: str, hint: str) -> None:
    """The error names the engines that build the format."""
    with pytest.raises(UsageError) as caught:
        run_engine(find_engine(engine), request(tmp_path, format=format))
    assert message in caught.value.message and "recipes/t.yaml: format:" in caught.value.message
    assert f"--engine {hint}" in caught.value.hint


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


def test_hint_names_the_modules_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a recipe knows them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    site = {"modules": ["LUMI", "cotainr"]}
    with pytest.raises(RunnerError) as caught:
        run_engine(find_engine("apptainer"), request(tmp_path, format="sif", site=site))
    assert "module load LUMI cotainr" in caught.value.hint


def test_foreign_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that run the image need a registered qemu for another processor; layered does not."""
    monkeypatch.setattr(dispatch, "host_architecture", lambda: "amd64")
    monkeypatch.setattr(dispatch, "is_registered", lambda architecture: False)
    with pytest.raises(RunnerError, match="the image is for arm64, this host is amd64") as caught:
        run_engine(find_engine("docker"), request(tmp_path, platform="linux-aarch64"))
    assert caught.value.hint.startswith("build with --engine layered")


@pytest.mark.parametrize("engine", ["docker", "apptainer", "cotainr"])
def test_base_python(tmp_path: Path, engine: str) -> None:
    """The other engines install Python from conda packages."""
    form = "oci" if engine == "docker" else "sif"
    asked = request(tmp_path, python="base", format=form)
    with pytest.raises(
        UsageError, match=rf"the engine {engine} installs a Python of conda.*has python: base"
    ):
        run_engine(find_engine(engine), asked)


@pytest.mark.parametrize(
    ("engine", "format", "bytecode"),
    [("docker", "oci", "all"), ("apptainer", "sif", "imported"), ("cotainr", "sif", "none")],
)
def test_bytecode_is_refused_where_it_is_written(
    tmp_path: Path, engine: str, format: str, bytecode: str
) -> None:
    """docker and apptainer compile nothing, cotainr what its tools compile; the default stops none."""
    asked = request(tmp_path, format=format, bytecode=bytecode)
    with pytest.raises(
        UsageError, match=rf"which modules are compiled.*has bytecode: {bytecode}\n"
    ) as caught:
        run_engine(find_engine(engine), asked)
    assert "--engine layered" in caught.value.hint
    plain = request(tmp_path, format=format)
    assert plain.recipe.bytecode == "all" and "bytecode" not in plain.recipe.model_fields_set
