"""``builder convert`` and ``builder diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import click

from builder.cli.context import Context, common_options, context_exit, pass_context
from builder.progress import working
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.trees.compare import Difference

#: Differences that are printed; --json lists all.
_SHOWN = 40


@click.command()
@click.argument("source")
@click.argument("dest")
@click.option(
    "--layout",
    type=click.Choice(["flat", "layered"]),
    default="flat",
    show_default=True,
    help="Layout of a SIF: one squashfs (flat), or a base with overlay partitions (layered).",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip"]),
    default="zstd",
    show_default=True,
    help="Compression of a SIF's squashfs.",
)
@click.option("--arch", help="Architecture to take if SOURCE has several (amd64, arm64).")
@common_options
@pass_context
def convert(
    context: Context,
    source: str,
    dest: str,
    layout: Literal["flat", "layered"],
    compression: Literal["zstd", "gzip"],
    arch: str | None,
) -> None:
    """Convert an OCI image to a SIF, or a SIF to an OCI image.

    SOURCE and DEST are FILE.sif, oci:DIR:TAG, oci-archive:FILE or docker-archive:FILE.
    SOURCE can also be docker://host/repository:tag.
    """
    from builder.image.convert import convert_image
    from builder.store.blobs import Store

    made = convert_image(
        source,
        dest,
        context.settings,
        Store(context.settings.cache),
        layout=layout,
        compression=compression,
        architecture=arch,
        reporter=context.output,
    )
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


@click.command()
@click.option("--files", is_flag=True, hidden=True, help="Compare the files, which is all that diff does.")
@click.argument("a")
@click.argument("b")
@click.option("--no-owners", is_flag=True, help="Ignore users and groups.")
@click.option("--arch", help="Architecture to take if an image has several (amd64, arm64).")
@common_options
@pass_context
def diff(context: Context, files: bool, a: str, b: str, no_owners: bool, arch: str | None) -> None:
    """Compare the files of two images, OCI or SIF. Exit with 1 if they differ.

    A and B are FILE.sif, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or docker://host/repository:tag.

    Modification times are ignored, and so is what SIF runtimes need: /.singularity.d and links to it, and
    empty mount points that only one image has.
    """
    from builder.image.convert import image_tree, open_image
    from builder.store.blobs import Store
    from builder.trees.compare import compare_trees

    store = Store(context.settings.cache)
    images = [
        open_image(name, context.settings, store, architecture=arch, reporter=context.output)
        for name in (a, b)
    ]
    trees = []
    for name, image in zip((a, b), images, strict=True):
        with working(context.output, f"reading {name}"):
            trees.append(image_tree(image, store))
    found = compare_trees(*trees, owners=not no_owners)
    summary = f"{len(found)} paths differ" if found else f"the same {len(trees[0])} files"
    context.output.result(
        {
            "a": a,
            "b": b,
            "equal": not found,
            "files": [len(tree) for tree in trees],
            "differences": [d.to_json() for d in found],
        },
        "\n".join([*_difference_lines(found, a, b), summary]),
    )
    if found:
        context_exit(1)


def _difference_lines(found: Sequence[Difference], a: str, b: str) -> Iterator[str]:
    """Returns the first differences as lines of rich markup."""
    for d in found[:_SHOWN]:
        if d.kind == "differs":
            text = ", ".join(_change(d, field) for field in d.what)
        else:
            text = f"only in {a if d.kind == 'only-a' else b}"
        yield f"/{d.path}: {text}".replace("[", r"\[")
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more"


def _change(difference: Difference, field: str) -> str:
    """Returns ``mode 644 -> 755``."""
    before, after = (_shown(field, getattr(node, field)) for node in (difference.a, difference.b))
    return f"{field} {before} -> {after}"


def _shown(field: str, value: object) -> str:
    if field == "mode":
        return f"{value:o}"
    return str(value)[:12] if field == "sha256" else str(value)
