"""The image in which wheels are built: the target's base with OS packages, and its locked packages.

It is made by the engine ``layered``, which finds layers of the target in the cache. Files, steps and
variables of the recipe are not in it, so changing them builds no wheel again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.bases.resolve import is_made_here, resolve_recipe_base
from builder.config.recipe import Recipe
from builder.engines.base import BuildRequest
from builder.engines.layered import Layered
from builder.model import Image, Lock, LockedBase, LockedPackage, SifImage
from builder.progress import Reporter
from builder.settings import Settings
from builder.store.blobs import Store


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """The image of one build, before it is made."""

    recipe: Recipe
    """That of the build image."""
    base: LockedBase
    packages: tuple[LockedPackage, ...]

    @property
    def key(self) -> list[str]:
        """What the image is made of, for the cache."""
        packages = sorted(p.key for p in self.packages)
        return [self.base.digest, *self.recipe.base_packages, self.recipe.conda.prefix, *packages]


def build_environment(
    recipe: Recipe,
    base: LockedBase,
    packages: Sequence[LockedPackage],
    base_packages: Sequence[str],
    settings: Settings,
    store: Store,
    reporter: Reporter,
) -> BuildEnvironment:
    """The image in which a wheel is built.

    Args:
        recipe: the target's.
        base: the target's base.
        packages: those that the image has.
        base_packages: OS packages in addition to the recipe's.
        settings, store, reporter: as everywhere.

    Raises:
        ConfigError, ImageError, RegistryError: the base cannot have these packages, or cannot be made.
    """
    everything = tuple(dict.fromkeys((*recipe.base_packages, *base_packages)))
    plain = recipe.model_copy(
        update={
            # a name of its own: the unpacked image of the target stays in the cache
            "name": f"{recipe.name}.wheels",
            "base_packages": everything,
            "files": (),
            "env": {},
            "labels": {},
            "annotations": {},
            "entrypoint": (),
            "workdir": "/",
            "format": "sif" if recipe.base.startswith("sif:") else "oci",
            "steps": (),
        }
    )
    if is_made_here(recipe.base) and len(everything) > len(recipe.base_packages):
        base = resolve_recipe_base(plain, settings, store, reporter)
    return BuildEnvironment(plain, base, tuple(packages))


def make_build_image(
    environment: BuildEnvironment, settings: Settings, store: Store, reporter: Reporter
) -> Image | SifImage:
    """Makes the image.

    Raises:
        FetchError, LayerError, ImageError, RegistryError, SpaceError: base or packages are not available.
    """
    recipe = environment.recipe
    lock = Lock(environment.packages, (recipe.platform,), base=environment.base)
    request = BuildRequest(recipe, lock, b"", settings, store, reporter=reporter)
    return Layered().build(request).artifact
