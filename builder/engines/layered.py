"""The default engine: turns locked packages into layers, and layers into an image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from builder.bytecode.layers import BytecodeRequest, bytecode_layers, in_order, layers_for_packages
from builder.bytecode.modules import wanted_modules
from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.folders import cached_sif
from builder.engines.prepare import FILES_TITLE, Inputs, prepare_inputs
from builder.engines.stack import Stack
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.build import LayersResult, build_layers, make_layer
from builder.layers.conda_meta import history_entry
from builder.layers.entry import Entry
from builder.layers.files import PackageFiles
from builder.layers.packages import Packages
from builder.model import Image, Layer, SifImage
from builder.steps.architecture import check_step_architecture
from builder.steps.recipe import link_scripts, recipe_steps

if TYPE_CHECKING:
    from builder.steps.job import StepRun

#: Docker 20.10 pulls 84 layers and fails at 128; 100 leaves room for images that are built on top.
MAX_LAYERS = 100
#: Layers that hold nothing of packages: the whiteout of the prefix below them, and builder's own files above.
OVERHEAD = 2


class Layered:
    """Builds without other programs, daemon or root.

    It runs nothing of what it installs, except for the steps of the recipe, and the image's Python, which
    compiles the packages' modules.
    """

    name = "layered"
    formats = frozenset({"oci", "sif"})
    repeatable = True

    def available(self) -> str | None:
        """Always works."""
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        """Builds the image, and for a SIF target the SIF."""
        clock = Clock()
        check_step_architecture(request.recipe)
        wanted = wanted_modules(request.recipe, request.lock)
        inputs = prepare_inputs(request, clock, lazy=True)
        packages, bytecode = _package_layers(request, inputs, wanted, clock)
        stack = Stack(request, inputs, packages.activation.env)
        stack.layers += [_prefix_layer(request, inputs), *in_order(packages.layers, bytecode)]
        _fill(stack, request, inputs, packages, clock)
        image = make_image(
            inputs.base,
            stack.layers,
            recipe=request.recipe,
            lock=request.lock,
            env=packages.activation.env,
            annotations={**request.recipe.annotations, **request.annotations},
            epoch=request.created,
        )
        clock.mark("image")

        artifact: Image | SifImage = image
        sif_source = None
        if request.recipe.format == "sif":
            artifact = _sif(request, image, inputs.base.sif)
            # without the base, which is a SIF here, the layers are no complete image
            sif_source = image if inputs.base.sif is None else None
            clock.mark("sif")
        return BuildResult(
            request.recipe,
            request.lock,
            inputs.locked_base,
            artifact,
            sif_source,
            conflicts=packages.conflicts,
            differences=tuple(stack.differences),
            notes=packages.notes,
            timings=clock.timings,
        )


def layer_budget(base_layers: int, steps: int) -> int:
    """Returns how many layers packages and their compiled modules may have."""
    return MAX_LAYERS - OVERHEAD - base_layers - steps


def _package_layers(
    request: BuildRequest, inputs: Inputs, wanted: frozenset[str] | None, clock: Clock
) -> tuple[LayersResult, tuple[Layer, ...]]:
    """Returns the layers of the packages, and those of the wanted modules, compiled."""
    recipe, settings, store, reporter = request.recipe, request.settings, request.store, request.reporter
    total = layer_budget(len(inputs.base.layers), recipe.step_count)
    files = PackageFiles(
        Packages(inputs.fetched, inputs.context, store, settings.tmpdir), settings.jobs, reporter
    )
    packages = build_layers(
        files,
        recipe.layers,
        settings,
        store,
        budget=layers_for_packages(total),
        post_link=recipe.conda.post_link,
        reporter=reporter,
    )
    clock.mark("layers")
    bytecode = bytecode_layers(
        BytecodeRequest(files, wanted, inputs.base, recipe, settings, store, total, packages.layers, reporter)
    )
    clock.mark("bytecode")
    return packages, bytecode


def _prefix_layer(request: BuildRequest, inputs: Inputs) -> Layer:
    """The layer below the packages: the whiteout of the prefix."""
    context = inputs.context
    conda = [package for package in inputs.packages if package.manager == "conda"]
    prefix = [*whiteout_entries(context.prefix), history_entry(conda, context)]
    return _layer(request, prefix, "environment prefix")


def _fill(stack: Stack, request: BuildRequest, inputs: Inputs, packages: LayersResult, clock: Clock) -> None:
    """Adds the layers above the packages, from the bottom up:

    - packages' link scripts, and the recipe's steps before the first one with ``files: true``
    - builder's own files and the recipe's
    - the other steps
    """
    recipe, context = request.recipe, inputs.context
    below, above = recipe_steps(recipe)
    _run(stack, [*link_scripts(recipe, inputs.fetched, context), *below], clock)
    files = system_entries(recipe, request.lock_text, context, packages.activation.scripts)
    stack.layers.append(_layer(request, files, FILES_TITLE))
    _run(stack, above, clock)


def _run(stack: Stack, steps: Sequence[StepRun], clock: Clock) -> None:
    for step in steps:
        clock.mark("image")
        stack.run(step)
        clock.mark(f"step {step.name}")


def _layer(request: BuildRequest, entries: Iterable[Entry], title: str) -> Layer:
    compression = request.recipe.layers.compression
    return make_layer(entries, title, request.settings, request.store, compression=compression)


def _sif(request: BuildRequest, image: Image, base: SifImage | None) -> SifImage:
    """The SIF of an image, in the cache."""
    from builder.sif.write import write_sif

    options = request.recipe.sif
    return write_sif(
        image,
        cached_sif(request, "layered"),
        request.settings,
        request.store,
        layout=options.layout,
        compression=options.compression,
        base=base,
        reporter=request.reporter,
    )
