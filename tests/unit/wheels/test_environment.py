"""The image in which wheels are built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.config.recipe import Recipe
from builder.model import Image, LockedBase
from builder.progress import QUIET
from builder.settings import Settings
from builder.store.blobs import Store
from builder.wheels import environment
from builder.wheels.environment import BuildEnvironment, build_environment, layers_of_target
from tests.support.images import make_layer, make_test_image

BASE = LockedBase("docker://r.example/os:1", "sha256:" + "1" * 64)


def test_packages_of_the_build_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of the build's OS packages is not one of the image: it is not looked for there."""
    settings, store = Settings(tmp_path / "cache", tmp_path / "tmp", 1), Store(tmp_path / "cache")
    values = {"base": BASE.reference, "environment": "environment.yml", "base_packages": ["libmpich12"]}
    recipe = Recipe.model_validate({"name": "t", **values})

    def made(plain: BuildEnvironment, *rest: object) -> Image:
        layers = [make_layer(tmp_path / "layers", name) for name in plain.recipe.base_packages]
        return replace(make_test_image([]), layers=tuple(layers))

    monkeypatch.setattr(environment, "make_build_image", made)

    def seen(extra: tuple[str, ...]) -> int:
        build = build_environment(recipe, BASE, (), extra, settings, store, QUIET)
        image = made(build)
        assert len(image.layers) == 1 + len(extra)
        return len(layers_of_target(image, build, recipe, BASE, settings, store, QUIET))

    assert seen(()) == seen(("gcc", "libmpich-dev")) == 1
