"""The default engine: turns locked packages into layers, and layers into an image."""

from __future__ import annotations

from collections.abc import Iterable

from builder.engines.base import BuildRequest, BuildResult, Clock
from builder.engines.folders import cached_sif
from builder.engines.prepare import FILES_TITLE, Inputs, prepare_inputs
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.build import LayersResult, build_layers, make_layer
from builder.layers.conda_meta import history_entry
from builder.layers.entry import Entry
from builder.model import Image, Layer, SifImage

#: Docker 20.10 pulls 84 layers and fails at 128; 100 leaves room for images that are built on top.
MAX_LAYERS = 100
#: Layers that are not packages: the whiteout of the prefix below them, and builder's own files above.
OVERHEAD = 2


class Layered:
    """Builds without other programs, daemon or root, and runs nothing of what it installs."""

    name = "layered"
    formats = frozenset({"oci", "sif"})
    repeatable = True

    def available(self) -> str | None:
        """Always works."""
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        """Builds the image, and for a SIF target the SIF."""
        clock = Clock()
        inputs = prepare_inputs(request, clock)
        packages = build_layers(
            inputs.fetched,
            inputs.context,
            request.recipe.layers,
            request.settings,
            request.store,
            budget=MAX_LAYERS - OVERHEAD - len(inputs.base.layers),
            post_link=request.recipe.conda.post_link,
            reporter=request.reporter,
        )
        clock.mark("layers")
        image = _image(request, inputs, packages)
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
            notes=packages.notes,
            timings=clock.timings,
        )


def _image(request: BuildRequest, inputs: Inputs, packages: LayersResult) -> Image:
    """The base, the whiteout of the prefix, the packages, and builder's own files on top."""
    recipe, context = request.recipe, inputs.context
    conda = [package for package in inputs.packages if package.manager == "conda"]
    prefix = [*whiteout_entries(context.prefix), history_entry(conda, context)]
    files = system_entries(recipe, request.lock_text, context, packages.activation.scripts)
    return make_image(
        inputs.base,
        [
            _layer(request, prefix, "environment prefix"),
            *packages.layers,
            _layer(request, files, FILES_TITLE),
        ],
        recipe=recipe,
        lock=request.lock,
        env=packages.activation.env,
        annotations={**recipe.annotations, **request.annotations},
        epoch=request.created,
    )


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
