"""The site part of a recipe: errors of invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import ConfigError
from builder.lock.config.queues import PartitionLimits, Qos, Queue, Slurm
from builder.lock.config.recipe import load_recipe
from builder.lock.config.site import Fabric, HostMpi, NodeHardware, Runtime, Site

ROOT = Path(__file__).parents[4]
HEAD = "base: oci:b\nenvironment: e.yml\nsite:\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    return tmp_path


def load_error(root: Path, site: str) -> ConfigError:
    """Loads a recipe with an invalid site and returns the error."""
    (root / "recipes" / "one.yaml").write_text(HEAD + site)
    with pytest.raises(ConfigError) as caught:
        load_recipe("one", root)
    assert caught.value.hint.startswith(("correct ", "write ", "use ", "add "))
    return caught.value


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (
            "  runtime: {binds: [scratch]}",
            "one.yaml:4: site.runtime.binds.0: 'scratch': write SOURCE, SOURCE:TARGET",
        ),
        ("  runtime: {binds: ['/a:/b:rx']}", "'rx' is neither ro nor rw"),
        ("  runtime: {env: {A-B: x}}", "'A-B' is not a valid variable name"),
        (
            "  runtime: {env: {A: $(id)}}",
            "one.yaml:4: site.runtime.env.A: '$(id)': write a variable as $NAME",
        ),
        ("  images: /work/{project}/x", "'/work/{project}/x': {project} is not {account}"),
        ("  slurm: {queues: {gpuu: {}}}", "site.slurm.queues.gpuu: unknown key; known keys: 'gpu', 'node'"),
        (
            "  slurm:\n    queues:\n      gpu:\n        time: 5x",
            "one.yaml:7: site.slurm.queues.gpu.time: '5x' is not a time",
        ),
        ('  title: "x\\ntouch y"', "site.title: must be one line without control characters"),
        ('  slurm: {queues: {gpu: {constraint: "x\\ntouch y"}}}', "must be one line"),
        ("  slurm: {gpus: 'gpu:{gpus}'}", "write options as --name=value"),
        ("  node: {gpus: 4, cores: 16, cpus_per_gpu: 5}", "4 GPUs with 5 cores each are more than 16 cores"),
        ("  node: {cores: 2, tasks: 4}", "4 tasks are more than 2 cores"),
        ("  launcher: mpi", "launcher mpi needs 'mpi:'"),
        (
            "  fabric: {optional_devices: [/dev/x]}",
            "fabric.optional_devices is for docker, podman and podman-hpc only, not for userns",
        ),
        (
            "  runtime: {kind: docker}",
            "launcher srun needs 'slurm:'; without Slurm write 'launcher: torchrun'",
        ),
    ],
)
def test_invalid_sites(project: Path, site: str, message: str) -> None:
    """The error names file, line and key."""
    assert message in load_error(project, site).message


def test_error_in_an_extended_recipe(project: Path) -> None:
    """The error names the file that contains the value."""
    (project / "recipes" / "_base.yaml").write_text(HEAD + "  node:\n    gpus: -1\n")
    (project / "recipes" / "two.yaml").write_text("extends: _base\nsite: {title: x}\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe("two", project)
    assert "_base.yaml:5: site.node.gpus: must be greater than or equal to 0" in caught.value.message


def test_docs_list_every_key() -> None:
    """docs/recipes.md names every key of a site."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    for model in (Site, Runtime, NodeHardware, Queue, PartitionLimits, Qos, Slurm, Fabric, HostMpi):
        for key in model.model_fields:
            assert f"`{key}`" in text, f"{model.__name__}.{key}"
