"""What every engine needs before it starts: the base opened, the packages on this disk, what activation and entry point are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.bases.image import BaseImage
from builder.bases.resolve import open_base, resolve_base
from builder.config.recipe import Recipe
from builder.engines.base import BuildRequest, Clock
from builder.errors import ConfigError, ImageError
from builder.fetch.packages import fetch_packages
from builder.image.config import environment
from builder.image.files import system_entries
from builder.layers.build import make_layer
from builder.layers.conda import activation_environment, link_order, python_context
from builder.layers.entry import LinkContext
from builder.lock.environment import find_links
from builder.model import Fetched, Layer, Lock, LockedPackage


def ordered_packages(recipe: Recipe, lock: Lock) -> list[LockedPackage]:
    """The lock's packages for the recipe's platform, as they are linked: conda by dependencies, then pip by name."""
    packages = lock.for_platform(recipe.platform)
    if not packages:
        raise ImageError(
            f"the lock of target {recipe.name} has packages for {', '.join(lock.platforms) or 'nothing'}, not {recipe.platform}",
            "lock the environment for this platform, or correct the recipe's platform",
        )
    conda = link_order([p for p in packages if p.manager == "conda"])
    return [*conda, *sorted((p for p in packages if p.manager == "pip"), key=lambda p: p.name)]


def opened_base(request: BuildRequest) -> BaseImage:
    """The base that the lock pins; for a lock that pins none (made elsewhere), what the recipe's reference holds now."""
    r = request
    locked = r.lock.base
    if locked is None:
        locked = resolve_base(
            r.recipe.base,
            r.recipe.architecture,
            r.settings,
            r.store,
            packages=r.recipe.base_packages,
            root=r.recipe.root,
            reporter=r.reporter,
        )
        r.reporter.note(f"the lock pins no base image; {r.recipe.base} is {locked.digest} now")
    base = open_base(
        locked,
        r.recipe.architecture,
        r.settings,
        r.store,
        packages=r.recipe.base_packages,
        download=r.download_base,
        root=r.recipe.root,
        reporter=r.reporter,
    )
    if base.sif is not None and r.recipe.format != "sif":
        raise ConfigError(
            f"{r.recipe.source}: the base {r.recipe.base} is a SIF, and target {r.recipe.name} an OCI image",
            "set 'format: sif', or make an OCI image of the base: builder convert",
        )
    return base


def fetch(request: BuildRequest) -> None:
    """Puts the base and the packages into the cache, for a build where there is no network.

    Raises:
        FetchError, ImageError, RegistryError, SpaceError.
    """
    r = request
    opened_base(r)
    packages = ordered_packages(r.recipe, r.lock)
    fetch_packages(packages, r.settings, r.store, find_links=find_links(r.recipe), reporter=r.reporter)


def gather(
    request: BuildRequest, clock: Clock
) -> tuple[BaseImage, list[LockedPackage], list[Fetched], LinkContext]:
    """What every build begins with: the base, the packages in link order, their archives, and what they are linked for.

    Raises:
        FetchError, LayerError, ImageError, RegistryError, SpaceError.
    """
    r = request
    r.store.sweep(r.settings.tmpdir)
    base = opened_base(r)
    clock.mark("base")
    packages = ordered_packages(r.recipe, r.lock)
    fetched = fetch_packages(
        packages, r.settings, r.store, find_links=find_links(r.recipe), reporter=r.reporter
    )
    clock.mark("fetch")
    context = python_context(packages, fetched, r.recipe.conda.prefix, r.recipe.platform, r.requested)
    return base, packages, fetched, context


@dataclass(frozen=True)
class Prepared:
    """What an engine that runs an installer is given.

    ``fetched`` are the locked archives in link order, ``files`` is the layer of builder's own files (entry point, smoke test,
    lock, the recipe's ``files:``), and ``env`` what the image's environment is to be.
    """

    base: BaseImage
    fetched: tuple[Fetched, ...]
    context: LinkContext
    files: Layer
    env: Mapping[str, str]
    activation: Mapping[str, str]


def prepare(request: BuildRequest, clock: Clock) -> Prepared:
    """Opens the base and fetches the packages; nothing is installed yet.

    Raises:
        FetchError, LayerError, ImageError, RegistryError, SpaceError.
    """
    r = request
    base, _, fetched, context = gather(r, clock)
    activation = activation_environment([f for f in fetched if f.package.manager == "conda"], context)
    files = make_layer(
        system_entries(r.recipe, r.lock_text, context, activation.scripts),
        "builder: entry point, smoke test, files",
        r.settings,
        r.store,
    )
    env = environment(base, r.recipe, r.lock, activation.env)
    return Prepared(base, tuple(fetched), context, files, env, activation.env)
