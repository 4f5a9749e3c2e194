"""The default engine: turns locked packages into layers, and layers into an image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.folders import cached_sif
from builder.engines.prepare import FILES_TITLE, Inputs, prepare_inputs
from builder.engines.stack import Stack
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.build import LayersResult, build_layers, make_layer
from builder.layers.conda_meta import history_entry
from builder.layers.entry import Entry
from builder.model import Image, Layer, SifImage
from builder.steps.architecture import check_step_architecture
from builder.steps.job import StepRun
from builder.steps.recipe import link_scripts, recipe_steps

#: Docker 20.10 pulls 84 layers and fails at 128; 100 leaves room for images that are built on top.
MAX_LAYERS = 100
#: Layers that are not packages: the whiteout of the prefix below them, and builder's own files above.
OVERHEAD = 2


class Layered:
    """Builds without other programs, daemon or root.

    It runs nothing of what it installs, except for the steps of the recipe.
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
        inputs = prepare_inputs(request, clock)
        packages = build_layers(
            inputs.fetched,
            inputs.context,
            request.recipe.layers,
            request.settings,
            request.store,
            budget=MAX_LAYERS - OVERHEAD - len(inputs.base.layers) - request.recipe.step_count,
            post_link=request.recipe.conda.post_link,
            reporter=request.reporter,
        )
        clock.mark("layers")
        stack = Stack(request, inputs, packages.activation.env)
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


def _fill(stack: Stack, request: BuildRequest, inputs: Inputs, packages: LayersResult, clock: Clock) -> None:
    """Adds the layers above the base, from the bottom up:

    - the whiteout of the prefix, and the packages
    - packages' link scripts, and the recipe's steps before the first one with ``files: true``
    - builder's own files and the recipe's
    - the other steps
    """
    recipe, context = request.recipe, inputs.context
    conda = [package for package in inputs.packages if package.manager == "conda"]
    prefix = [*whiteout_entries(context.prefix), history_entry(conda, context)]
    stack.layers += [_layer(request, prefix, "environment prefix"), *packages.layers]

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
