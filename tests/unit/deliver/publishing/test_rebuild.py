"""What a rebuild reads of a provenance, and how it names what differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.build.engines.base import BuildResult
from builder.core.model import LockedBase
from builder.deliver.project import Project
from builder.deliver.publishing.attest import provenance
from builder.deliver.publishing.rebuild import _differences, _Inputs, _layers, _values, rebuild
from builder.formats.oci.digest import sha256
from builder.lock.config.recipe import Recipe, load_recipe, recipe_files
from tests.support.images import make_layer, make_test_image
from tests.unit.deliver.publishing.conftest import LOCK, built

ROOT = Path(__file__).parents[4]
RICH: dict[str, Any] = {
    "files": [{"source": "train.py", "target": "/app/", "mode": "0755"}],
    "steps": [{"run": "ldconfig", "files": True}, {"run": ["a", "b"], "network": True, "title": "two"}],
    "site": {"title": "Tests", "runtime": {"kind": "podman"}, "slurm": {"account": "required"}},
    "pip": {"build": {"flash-attn": {"env": {"MAX_JOBS": "4"}, "needs": ["ninja"], "no_isolation": True}}},
    "smoke": {"none": "no GPU"},
    "cmd": [],
    "entrypoint": [],
    "annotations": {"org.opencontainers.image.source": "https://host.example/x"},
}


def read_back(recipe: Recipe) -> Recipe:
    """The recipe in the provenance of a build of it."""
    image = make_test_image([])
    result = BuildResult(recipe, LOCK, LockedBase(recipe.base, "sha256:" + "e" * 64), image)
    found = _Inputs.read(provenance(result, image.digest, 1), recipe.root)
    return found.recipe.model_copy(update={"source": recipe.source})


@pytest.mark.parametrize("name", recipe_files(ROOT))
def test_shipped_recipes(name: str) -> None:
    """The recipe of a provenance is the recipe that was built."""
    recipe = load_recipe(name, ROOT)
    assert read_back(recipe) == recipe


@pytest.mark.parametrize("more", [RICH, {"python": "base", "lock": "uv.lock", "groups": ["dev"]}])
def test_recipe(tmp_path: Path, more: dict[str, Any]) -> None:
    recipe = built(tmp_path, **more).recipe
    assert read_back(recipe) == recipe


def statement(result: BuildResult, **parameters: Any) -> bytes:
    """A provenance with other external parameters."""
    value = json.loads(provenance(result, "sha256:" + "9" * 64, 1))
    value["predicate"]["buildDefinition"]["externalParameters"] |= parameters
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "damaged, or not one of builder's"),
        (b"[1]", "damaged, or not one of builder's"),
        (b'{"predicate": {"buildDefinition": 3}}', "damaged, or not one of builder's"),
        ({"engine": "docker"}, "the engine docker makes other bytes each time"),
        ({"recipe": {"name": "t"}}, "the recipe of the attached provenance: base: Field required"),
        ({"recipe": {"name": "t", "base": "b", "environment": "e", "x": 1}}, "provenance: x: "),
    ],
)
def test_not_rebuilt(project: Project, tmp_path: Path, data: Any, problem: str) -> None:
    """What cannot be rebuilt is named, and is not equal."""
    result = built(tmp_path)
    assert result.image is not None
    text = data if isinstance(data, bytes) else statement(result, **data)
    found = rebuild(result.image, b"", text, tmp_path, project.work)
    assert not found.equal and problem in found.problem and found.to_json()["equal"] is False
    assert not list((project.work.settings.cache / "tmp").glob("*"))


def test_causes(tmp_path: Path) -> None:
    """Another builder, removed credentials, files and steps are named as likely causes."""
    inputs = _Inputs(built(tmp_path, **RICH).recipe, "layered", 1, sha256(b"lock"), frozenset(), "0.0.1")
    titles = ("builder: entry point, smoke test, files", "step: two", "step: ldconfig", "other")
    layers = [make_layer(tmp_path, f"builder: {title}", number) for number, title in enumerate(titles)]
    others = [
        replace(layer, title=f"builder: {title}") for layer, title in zip(layers[1:], titles, strict=False)
    ]
    found = _differences(_layers(make_test_image(layers)), _layers(make_test_image(others)))
    assert [one.name for one in found] == list(titles) and found[-1].found == ""
    version, credentials, files, *steps = inputs.causes(b"other", titles)
    assert "0.0.1" in version and "credentials" in credentials and "train.py" in files
    assert "the step 'ldconfig' writes" in steps[0] and "the step 'two' uses the network" in steps[1]
    assert list(inputs.causes(b"lock")) == [version]


def test_values(tmp_path: Path) -> None:
    """Values of config and manifest that differ are named by their paths, without digests of layers."""
    layers = [make_layer(tmp_path, "one")]
    noted = replace(layers[0], descriptor=replace(layers[0].descriptor, annotations={"a": "b"}))
    images = (make_test_image(layers, "old"), make_test_image([noted], "new"))
    found = _differences(*(_values(image, unpacked=True) for image in images))
    assert [(one.name, one.expected, one.found) for one in found] == [
        ("config.Labels.label", "old", "new"),
        ("manifest.layers[0].annotations.a", "", "b"),
    ]
