"""The default engine: locked packages straight to layers, layers to an OCI image."""

from __future__ import annotations

from builder.engines.base import BuildRequest, BuildResult, Clock, cached_sif
from builder.engines.prepare import gather
from builder.image.config import make_image
from builder.image.files import system_entries, whiteout_entries
from builder.layers.build import build_layers, make_layer
from builder.layers.conda import history_entry
from builder.model import Image, LockedBase, SifImage

#: Docker 20.10 pulls 84 layers and fails at 128; 100 leaves room for whatever is built on top.
MAX_LAYERS = 100
#: Layers of our own besides the packages': the whiteout below them, the entry point and files above.
OVERHEAD = 2


class Layered:
    """Locked packages to layers, layers to an image. Needs no daemon and no root, and runs nothing of what it installs."""

    name = "layered"
    formats = frozenset({"oci", "sif"})
    repeatable = True

    def available(self) -> str | None:
        """Always: SIFs too are made without other programs."""
        return None

    def build(self, request: BuildRequest) -> BuildResult:
        """Builds the image; for a SIF target, the SIF of it."""
        r = request
        clock = Clock()
        base, packages, fetched, context = gather(r, clock)
        made = build_layers(
            fetched,
            context,
            r.recipe.layers,
            r.settings,
            r.store,
            budget=MAX_LAYERS - OVERHEAD - len(base.layers),
            post_link=r.recipe.conda.post_link,
            reporter=r.reporter,
        )
        clock.mark("layers")
        compression = r.recipe.layers.compression
        bottom = make_layer(
            [
                *whiteout_entries(context.prefix),
                history_entry([p for p in packages if p.manager == "conda"], context),
            ],
            "environment prefix",
            r.settings,
            r.store,
            compression=compression,
        )
        top = make_layer(
            system_entries(r.recipe, r.lock_text, context, made.activation.scripts),
            "builder: entry point, smoke test, files",
            r.settings,
            r.store,
            compression=compression,
        )
        image = make_image(
            base,
            [bottom, *made.layers, top],
            recipe=r.recipe,
            lock=r.lock,
            env=made.activation.env,
            annotations={**r.recipe.annotations, **r.annotations},
            epoch=r.settings.epoch,
        )
        clock.mark("image")
        sif = None
        if r.recipe.format == "sif":
            sif = _sif(r, image, base.sif)
            clock.mark("sif")
        return BuildResult(
            r.recipe,
            r.lock,
            LockedBase(base.reference, base.digest),
            image if base.sif is None else None,  # without its base it is no image
            sif,
            conflicts=made.conflicts,
            notes=made.notes,
            timings=clock.timings,
        )


def _sif(request: BuildRequest, image: Image, base: SifImage | None) -> SifImage:
    """The SIF of an image, in the cache."""
    from builder.sif.write import write_sif

    r = request
    options = r.recipe.sif
    return write_sif(
        image,
        cached_sif(request, "layered"),
        r.settings,
        r.store,
        layout=options.layout,
        compression=options.compression,
        base=base,
        reporter=r.reporter,
    )
