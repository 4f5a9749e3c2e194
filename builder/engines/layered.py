"""The default engine: locked packages straight to layers, layers to an OCI image."""

from __future__ import annotations

from builder.config.recipe import Recipe
from builder.engines.base import BuildResult, Clock
from builder.errors import ImageError
from builder.fetch import fetch_packages
from builder.image.base import BaseImage, open_base, resolve_base
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.build import build_layers, make_layer
from builder.layers.conda import history_entry, link_order, python_context
from builder.model import Lock, LockedBase, LockedPackage
from builder.progress import QUIET, Reporter
from builder.settings import Settings
from builder.store import Store

#: Docker 20.10 pulls 84 layers and fails at 128; 100 leaves room for whatever is built on top.
MAX_LAYERS = 100
#: Layers of our own besides the packages': the whiteout below them, the entry point and files above.
OVERHEAD = 2


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


def build(
    recipe: Recipe,
    lock: Lock,
    lock_text: bytes,
    settings: Settings,
    store: Store,
    *,
    requested: frozenset[str] = frozenset(),
    download_base: bool = True,
    annotations: dict[str, str] | None = None,
    reporter: Reporter = QUIET,
) -> BuildResult:
    """Builds the image of a lock.

    Args:
        recipe: the target.
        lock: its lock; a lock without a base (made elsewhere) takes what the recipe's base reference holds now.
        lock_text: the lock file's bytes; they go into the image as ``/opt/builder/conda-lock.yml``.
        requested: package names that the environment file asks for.
        download_base: False leaves a registry base's layers where they are (enough where they can be mounted).
        annotations: added to the manifest, beside the recipe's.

    Raises:
        FetchError, LayerError, ImageError, RegistryError, SpaceError.
    """
    clock = Clock()
    store.sweep(settings.tmpdir)
    base = _open_base(recipe, lock, settings, store, download=download_base, reporter=reporter)
    clock.mark("base")
    packages = ordered_packages(recipe, lock)
    fetched = fetch_packages(packages, settings, store, find_links=recipe.pip.find_links, reporter=reporter)
    clock.mark("fetch")
    context = python_context(packages, fetched, recipe.conda.prefix, recipe.platform, requested)
    made = build_layers(
        fetched,
        context,
        recipe.layers,
        settings,
        store,
        budget=MAX_LAYERS - OVERHEAD - len(base.layers),
        post_link=recipe.conda.post_link,
        reporter=reporter,
    )
    clock.mark("layers")
    bottom = make_layer(
        [*whiteout_entries(context.prefix), history_entry([p for p in packages if p.manager == "conda"], context)],
        "environment prefix",
        settings,
        store,
        compression=recipe.layers.compression,
    )
    top = make_layer(
        system_entries(recipe, lock_text, context, made.activation.scripts),
        "builder: entry point, smoke test, files",
        settings,
        store,
        compression=recipe.layers.compression,
    )
    image = make_image(
        base,
        [bottom, *made.layers, top],
        recipe=recipe,
        lock=lock,
        env=made.activation.env,
        annotations={**recipe.annotations, **(annotations or {})},
        epoch=settings.epoch,
    )
    clock.mark("image")
    return BuildResult(
        recipe,
        lock,
        LockedBase(base.reference, base.digest),
        image,
        conflicts=made.conflicts,
        notes=made.notes,
        timings=clock.timings,
    )


def _open_base(recipe: Recipe, lock: Lock, settings: Settings, store: Store, *, download: bool, reporter: Reporter) -> BaseImage:
    locked = lock.base
    if locked is None:
        locked = resolve_base(
            recipe.base,
            recipe.architecture,
            settings,
            store,
            packages=recipe.base_packages,
            root=recipe.root,
            reporter=reporter,
        )
        reporter.note(f"the lock pins no base image; {recipe.base} is {locked.digest} now")
    return open_base(
        locked,
        recipe.architecture,
        settings,
        store,
        packages=recipe.base_packages,
        download=download,
        root=recipe.root,
        reporter=reporter,
    )
