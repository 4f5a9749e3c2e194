"""The stages that engines share: open the base, download the packages; make image and SIF."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from builder.build.bases.image import BaseImage
from builder.build.bases.resolve import is_made_here, open_base, resolve_base
from builder.build.image.config import environment, layer_limit, make_image, most_layers
from builder.core.errors import ConfigError, ImageError, LockError
from builder.core.model import Image, Layer, Lock, LockedBase, LockedPackage, SifImage
from builder.core.redact import redact
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.formats.layers.cache import FORMAT, cache_key
from builder.formats.layers.conda_order import link_order
from builder.formats.layers.entry import LinkContext
from builder.formats.layers.packages import Fetch, Packages
from builder.formats.oci.image import config_environment
from builder.lock.config.recipe import Recipe
from builder.lock.config.steps import WheelBuild
from builder.lock.config.yamlfile import place_of
from builder.lock.inputs import without_sha256
from builder.lock.record import lock_date

from .base import BuildRequest, Clock, cached_sif

log = logging.getLogger(__name__)


def ordered_packages(recipe: Recipe, lock: Lock) -> list[LockedPackage]:
    """Return the lock's packages for the recipe in link order: conda's, then pip's by name.

    Raises:
        ImageError: The lock has none for this platform.
    """
    packages = lock.for_platform(recipe.platform)
    if not packages:
        found = sorted({f"{p.platform} in category {p.category}" for p in lock.packages})
        raise ImageError(
            f"the lock of target {recipe.name} has no packages for {recipe.platform} "
            f"in category main; it has those for {', '.join(found) or 'no platform'}",
            "lock the environment for this platform, or choose categories in the recipe: "
            "groups: [NAME]",
        )
    for package in packages:
        if package.manager == "pip" and not package.filename.endswith(".whl"):
            url = redact(package.url)
            raise LockError(
                f"the lock of target {recipe.name}: {package.name} is locked from its source, "
                f"{url}, and has to be built",
                "lock with builder, which builds it: remove 'lock:' from the recipe, and add "
                f"'- pip: [\"{package.name} @ {url}\"]' to its environment file",
            )
    conda = link_order([p for p in packages if p.manager == "conda"])
    listed = {name: number for number, name in enumerate(lock.record.link_order.split())}
    conda.sort(key=lambda package: listed.get(package.name, -1))
    pip = sorted((p for p in packages if p.manager == "pip"), key=lambda p: p.name)
    return [*conda, *pip]


def open_locked_base(request: BuildRequest) -> BaseImage:
    """Open the base that the lock pins, with the OS packages of the lock as its topmost layer.

    If it pins none (made by another tool), that is the current image of the recipe's base.

    Raises:
        LockError: The lock pins another base than the recipe's.
        ConfigError: The base is a SIF, and the target is an OCI image.
        FetchError, HashMismatch, RunnerError: OS packages cannot be downloaded or installed.
        ImageError, RegistryError, SpaceError: The base cannot be opened.
    """
    recipe = request.recipe
    locked = _locked_base(request)
    log.info("base %s %s", redact(locked.reference), locked.digest)
    download = request.options.download_base or bool(recipe.steps)
    base = open_base(locked, recipe, request.work, download=download)
    if base.sif is not None and recipe.format != "sif":
        raise ConfigError(
            f"{recipe.source}: the base {recipe.base} is a SIF, and target {recipe.name} "
            "is an OCI image",
            "set 'format: sif', or name an OCI image as the base",
        )
    return _with_os_packages(request, locked, base)


def _locked_base(request: BuildRequest) -> LockedBase:
    recipe = request.recipe
    pinned = request.lock.base
    if pinned is None:
        pinned = resolve_base(recipe.base, recipe, request.work)
        note = f"the lock pins no base image; {recipe.base} is {pinned.digest} today"
        request.work.reporter.note(note)
    elif pinned.reference != recipe.base:
        reference = redact(pinned.reference)
        raise LockError(
            f"the lock pins the base {reference}, and {recipe.source} names {recipe.base}",
            f"lock again (builder lock {recipe.name}), or correct 'base:' in the recipe",
        )
    return pinned


def _with_os_packages(request: BuildRequest, locked: LockedBase, base: BaseImage) -> BaseImage:
    """Return the base with a layer of the lock's OS packages; else of the current ones.

    A base that builder makes has those of the recipe already, but not those of the build of a
    wheel.
    """
    recipe = request.recipe
    wheel = request.wheel_of or ""
    build = recipe.pip.build.get(wheel, WheelBuild())
    own = () if is_made_here(recipe.base) else recipe.base_packages
    if not own and not build.base_packages:
        return base
    # imported here: most targets add no OS packages to their base
    from builder.build.steps.apt_install import OsInstall, os_layer, with_os_layer

    keys = (*(("pip", "build", wheel) if build.base_packages else ()), "base_packages")

    def complete() -> BaseImage:
        if request.options.download_base:
            return base
        return open_base(locked, recipe, request.work, download=True)

    packages = request.lock.record.os_packages
    if packages is None:
        from builder.build.steps.apt_solve import solve_os_packages

        asked = recipe.model_copy(update={"base_packages": (*own, *build.base_packages)})
        packages = solve_os_packages(asked, complete(), request.work, *keys)
        where = recipe.name if request.wheel_of is None else "the image in which wheels are built"
        request.work.reporter.note(
            f"the lock has no versions of OS packages: {where} gets the newest ones"
        )
    if not packages:
        return base
    date, where = lock_date(request.lock.record), place_of(recipe.source, *keys)
    install = OsInstall(base, packages, recipe.architecture, date, recipe.name, where)
    return with_os_layer(base, os_layer(install, complete, request.work))


def download_inputs(request: BuildRequest) -> None:
    """Download the base and the packages into the cache, for a later build without a network.

    Raises:
        FetchError, ImageError, RegistryError, SpaceError: A download failed.
    """
    open_locked_base(request)
    fetch_archives(request)(ordered_packages(request.recipe, request.lock))


def fetch_archives(request: BuildRequest) -> Fetch:
    """Return the request's function that fetches archives; warn of a lock with weak hashes."""
    if problem := without_sha256(request.recipe, request.lock):
        request.work.reporter.warn(f"{problem}; such an image cannot be published")
    return request.fetch


def prepare_inputs(request: BuildRequest, clock: Clock) -> tuple[BaseImage, Packages]:
    """Open the base, and return it with the packages. Archives are fetched when they are needed.

    Raises:
        FetchError, LayerError, ImageError, RegistryError, SpaceError: Base or packages are not
        available or damaged.
    """
    request.work.store.sweep(request.work.settings.tmpdir)
    packages = ordered_packages(request.recipe, request.lock)
    base = open_locked_base(request)
    check_layer_count(request, base, len(base.layers) + 1)
    clock.mark("base")
    fetch = fetch_archives(request)
    return base, Packages(packages, _context(request, packages, fetch), request.work, fetch)


def _context(request: BuildRequest, packages: list[LockedPackage], fetch: Fetch) -> LinkContext:
    """Return the context for linking; it is recorded, so that Python's archive is read once."""
    recipe, store = request.recipe, request.work.store
    context = LinkContext(recipe.conda.prefix, "", "", recipe.platform, request.requested)
    python = next((p for p in packages if (p.manager, p.name) == ("conda", "python")), None)
    if python is None:
        return context

    def find() -> tuple[str, str]:
        from builder.formats.layers.conda_layout import python_of

        return python_of(fetch([python])[0])

    version, site_packages = python_record(python, store).get(find)
    return replace(context, python=version, site_packages=site_packages)


def python_record(python: LockedPackage, store: Store) -> Record[tuple[str, str]]:
    """Return the cache's record of the version and site-packages of a conda package's Python."""
    key = cache_key([FORMAT, "python", python.key, python.url, python.version])
    return store.record(store.folders.index / f"python-{key}.json", tuple[str, str])


def check_layer_count(request: BuildRequest, base: BaseImage, count: int) -> None:
    """Raise ImageError if the target's image, of ``count`` layers, has more than engines take."""
    if request.wheel_of is None and count > most_layers(request.recipe):
        limit = layer_limit()
        raise ImageError(
            f"the image of target {request.recipe.name} needs {count} layers, {len(base.layers)} of "
            f"them of its base {redact(base.reference)}; {limit['engine']} takes at most "
            f"{limit['layers']}",
            "set 'format: sif', which has no layers; or flatten the base ('crane flatten IMAGE', "
            "'podman build --squash-all') and name the result",
        )


def image_of_build(
    request: BuildRequest, base: BaseImage, layers: Sequence[Layer], env: Mapping[str, str]
) -> Image:
    """Return the image of layers over a base.

    Args:
        request: The build.
        base: The base.
        layers: From the bottom up.
        env: Variables that activating the environment sets.

    Raises:
        ImageError: See :func:`check_layer_count`.
    """
    recipe = request.recipe
    check_layer_count(request, base, len(base.layers) + len(layers))
    kept = environment(base, recipe, request.lock, env)
    removed = [name for name in config_environment(base.config) if name not in kept]
    if removed and request.wheel_of is None:
        what = f"not in the image: {', '.join(removed)} of the base, which would hide packages"
        request.work.reporter.note(f"{what}; 'env:' in {recipe.source} can set it")
    return make_image(
        base,
        layers,
        recipe=recipe,
        lock=request.lock,
        env=env,
        annotations={**recipe.annotations, **request.options.annotations},
        epoch=request.created,
    )


def write_target_sif(
    request: BuildRequest, engine: str, image: Image, base: SifImage | None
) -> SifImage:
    """Return the SIF of an image, in the cache; ``base``: the SIF below the image's layers."""
    from builder.formats.sif.write import write_sif

    return write_sif(
        image,
        cached_sif(request, engine),
        request.work,
        layout=request.recipe.sif.layout,
        compression=request.recipe.sif.compression,
        base=base,
    )
