"""The default engine: turns locked packages into layers, and layers into an image."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.bases.registry import present_layers
from builder.build.bytecode.inputs import BytecodeRequest, python_package
from builder.build.bytecode.layers import (
    bytecode_layers,
    bytecode_records,
    in_order,
    layers_for_packages,
)
from builder.build.image.config import environment, most_layers
from builder.build.image.files import system_entries, whiteout_entries
from builder.build.image.libraries import missing_libraries
from builder.build.steps.recipe import check_step_architecture, recipe_steps
from builder.core.model import Image, Layer, LockedBase, SifImage
from builder.formats.layers.build import LayersResult, build_layers, make_layer, package_records
from builder.formats.layers.conda_meta import history_entry
from builder.formats.layers.entry import Entry
from builder.formats.layers.libraries import library_record
from builder.formats.layers.packages import Packages

from .base import BuildRequest, BuildResult, Clock
from .prepare import image_of_build, prepare_inputs, python_record, write_target_sif

if TYPE_CHECKING:
    from builder.build.steps.changes import StepDifference
    from builder.build.steps.run import StepRun

log = logging.getLogger(__name__)

#: Layers of an image, unless its base leaves no room for the packages: it has space for images that
#: are built on top.
PLANNED_LAYERS = 100
#: Layers that hold nothing of packages: the whiteout of the prefix below them, and builder's files
#: above.
OVERHEAD = 2
#: Title of the layer of builder's own files. It is part of the image's history, and so of its
#: digest.
FILES_TITLE = "builder: entry point, smoke test, files"


class Layered:
    """Builds without other programs, daemon or root.

    It runs nothing of what it installs, except for the steps of the recipe, and the image's Python,
    which compiles the packages' modules.
    """

    name = "layered"
    formats = frozenset({"oci", "sif"})
    repeatable = True

    def available(self) -> str | None:
        """Return None: it always works."""
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        """Build the image, and for a SIF target the SIF."""
        clock = Clock()
        stack = make_layers(request, clock)
        image = stack.image()
        clock.mark("image")
        if request.recipe.format != "sif":
            return stack.result(image, clock)
        base = stack.base.sif
        sif = write_target_sif(request, self.name, image, base)
        clock.mark("sif")
        # without the base, which is a SIF here, the layers are no complete image
        return stack.result(sif, clock, sif_source=image if base is None else None)


class Stack:
    """Builder's layers over the base, from the bottom up.

    Args:
        request: the build.
        packages: the layers of the packages.
        modules: the base and the packages, and which of their modules are compiled.
    """

    def __init__(
        self, request: BuildRequest, packages: LayersResult, modules: BytecodeRequest
    ) -> None:
        self.base, self.files = modules.base, modules.packages
        self.packages = packages
        prefix = whiteout_entries(self.files.context.prefix)
        self.prefix = _layer(request, [*prefix, history(self.files)], "environment prefix")
        """The lowest layer: the whiteout of the prefix."""
        self.layers: list[Layer] = [*in_order(packages.layers, bytecode_layers(modules))]
        """The layers above it."""
        if request.options.download_base or request.recipe.steps:
            self.layers = [*present_layers(self.layers, request.work)]
        self.differences: list[StepDifference] = []
        """Files that differed when the steps ran twice (only with ``check_steps``)."""
        self._modules = modules
        self._request = request

    def image(self) -> Image:
        """Return the image of all layers; over a SIF, those of the base are not in it."""
        layers = [self.prefix, *self.layers]
        return image_of_build(self._request, self.base, layers, self.packages.activation.env)

    def result(
        self, artifact: Image | SifImage, clock: Clock, *, sif_source: Image | None = None
    ) -> BuildResult:
        """Return the result of the build that made ``artifact`` of these layers."""
        request, recipe, base = self._request, self._request.recipe, self.base
        missing = missing_libraries(recipe, base, self.layers, self.files, request.work)
        return BuildResult(
            recipe,
            request.lock,
            LockedBase(base.reference, base.digest),
            artifact,
            sif_source,
            conflicts=self.packages.conflicts,
            differences=tuple(self.differences),
            notes=self.packages.notes,
            missing_libraries=missing,
            timings=clock.timings,
            work=request.work,
            records=self.records,
        )

    def records(self) -> list[Path]:
        """Return the cache's records of the layers, and of what a build reads to plan them."""
        from builder.build.bases.contents import system_record

        modules, layers = self._modules, self._request.recipe.layers.options
        store, budget = self._request.work.store, layers_for_packages(modules.total)
        planned = package_records(self.files, layers, budget=budget)
        base = system_record(LockedBase(self.base.reference, self.base.digest), store).path
        python = python_package(self.files)
        context = [python_record(python, store).path] if python else []
        with_files = [layer for layer in self.layers if layer.packages]
        libraries = (library_record(x.descriptor.digest, store).path for x in with_files)
        return [*planned, *bytecode_records(modules), *libraries, *context, base]

    def run(self, step: StepRun) -> None:
        """Run a step over the layers so far, unless the cache has its layer; add the layer.

        Raises:
            ImageError, RunnerError, FetchError, SpaceError: See
                :func:`builder.build.steps.run.cached_step`.
        """
        # imported here: most targets have no steps
        from builder.build.steps.changes import compare_layers
        from builder.build.steps.run import cached_step, run_step
        from builder.formats.oci.image import image_of

        request, recipe = self._request, self._request.recipe
        image = image_of(
            (*self._base_layers, self.prefix, *self.layers),
            environment(self.base, recipe, request.lock, self.packages.activation.env),
            architecture=recipe.architecture,
            target=recipe.name,
        )
        layer = cached_step(image, step, request.work)
        if request.options.check_steps:
            again = run_step(image, step, request.work)
            self.differences += compare_layers(step.name, layer, again, request.work.store)
        self.layers.append(layer)

    @cached_property
    def _base_layers(self) -> tuple[Layer, ...]:
        """The layers of the base; for a SIF, its partitions as layers."""
        if self.base.sif is None:
            return self.base.layers
        from builder.build.bases.sif import sif_layers

        return (*sif_layers(self.base.sif, self._request.work), *self.base.layers)


def make_layers(request: BuildRequest, clock: Clock) -> Stack:
    """Make all layers of a build. Those above the packages are, from the bottom up:

    - the recipe's steps before the first one with ``files: true``
    - builder's own files and the recipe's
    - the other steps

    Raises:
        FetchError, LayerError, ImageError, RegistryError, RunnerError, SpaceError: See
            :meth:`builder.build.engines.base.Engine.build`.
    """
    recipe = request.recipe
    check_step_architecture(recipe)
    stack = _package_stack(request, clock)
    below, above = recipe_steps(recipe)
    _run(stack, below, clock)
    files = system_entries(recipe, request.lock.text, stack.packages.activation.scripts)
    stack.layers.append(_layer(request, files, FILES_TITLE))
    _run(stack, above, clock)
    return stack


def _package_stack(request: BuildRequest, clock: Clock) -> Stack:
    """Return the layers of the packages, and those of their compiled modules."""
    recipe = request.recipe
    base, files = prepare_inputs(request, clock)
    others = OVERHEAD + len(base.layers) + len(recipe.steps)
    total = PLANNED_LAYERS - others
    if total < 2:  # a layer for the packages of each manager
        total = min(PLANNED_LAYERS, most_layers(recipe) - others)
    packages = build_layers(
        files,
        recipe.layers.options,
        budget=layers_for_packages(total),
        post_link=recipe.conda.post_link,
    )
    clock.mark("layers")
    modules = BytecodeRequest(files, base, recipe, request.work, total, packages.layers)
    stack = Stack(request, packages, modules)
    clock.mark("bytecode")
    count = len(packages.layers)
    log.info("%d layers of packages, %d of their modules", count, len(stack.layers) - count)
    return stack


def history(files: Packages) -> Entry:
    """Return conda's file that lists the packages which the environment began with."""
    conda = [package for package in files.locked if package.manager == "conda"]
    return history_entry(conda, files.context)


def _run(stack: Stack, steps: Sequence[StepRun], clock: Clock) -> None:
    for step in steps:
        clock.mark("image")
        stack.run(step)
        clock.mark(f"step {step.name}")


def _layer(request: BuildRequest, entries: Iterable[Entry], title: str) -> Layer:
    compression = request.recipe.layers.compression
    return make_layer(entries, title, request.work, compression=compression)
