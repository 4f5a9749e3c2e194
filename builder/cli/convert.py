"""``builder convert``."""

from __future__ import annotations

from typing import Any

import click

from builder.core.text import human_bytes

from .context import Context, with_context
from .options import choice, option


@click.command()
@click.argument("source")
@click.argument("dest")
@choice("--compression", of=["zstd", "gzip"])
@option("--arch", "architecture")
@with_context
def convert(context: Context, source: str, dest: str, **values: Any) -> None:
    """Convert an OCI image to a SIF or a plain squashfs.

    SOURCE is oci:DIR:TAG, docker-archive:FILE or docker://host/repository:tag.
    DEST is FILE.sif, or FILE.sqsh: a plain squashfs for enroot and CSCS's Container Engine.
    """
    from builder.build.image.convert import convert_image

    made = convert_image(source, dest, context.work, **values)
    context.output.result(
        {
            "source": source,
            "dest": dest,
            "from": made.source_digest,
            "digest": made.digest,
            "size": made.size,
        },
        f"{dest} {made.digest}\n  {human_bytes(made.size)}, from {source}",
    )
