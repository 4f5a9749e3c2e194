"""``builder convert`` and ``builder diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from builder.cli.context import Context, common_options, context_exit, format_option, pass_context
from builder.progress import working
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.trees.compare import Difference

#: Differences that are printed; --json lists all.
_SHOWN = 40
#: How the names of lock files end.
_LOCKS = (".yml", ".yaml")


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
    help="Compression of a squashfs. Default: zstd in a SIF, gzip in a FILE.sqsh.",
)
@click.option("--arch", help="Architecture to take if SOURCE has several (amd64, arm64).")
@common_options
@pass_context
def convert(
    context: Context,
    source: str,
    dest: str,
    layout: Literal["flat", "layered"],
    compression: Literal["zstd", "gzip"] | None,
    arch: str | None,
) -> None:
    """Convert an OCI image to a SIF, or a SIF to an OCI image.

    SOURCE and DEST are FILE.sif, oci:DIR:TAG, oci-archive:FILE or docker-archive:FILE.
    SOURCE can also be docker://host/repository:tag. DEST can also be FILE.sqsh: a plain squashfs for enroot
    and CSCS's Container Engine, as enroot import makes it.
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
@click.option("--files", is_flag=True, help="Compare the files of images, whatever the names end with.")
@click.argument("a")
@click.argument("b")
@click.option("--no-owners", is_flag=True, help="Ignore users and groups.")
@click.option("--arch", help="Architecture to take if an image has several (amd64, arm64).")
@format_option
@common_options
@pass_context
def diff(context: Context, files: bool, a: str, b: str, no_owners: bool, arch: str | None, form: str) -> None:
    """Compare two locks, or the files of two images. Exit with 1 if they differ.

    A and B are lock files (.yml), or images: FILE.sif, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or
    docker://host/repository:tag. Of locks, packages and base images are compared.

    Modification times are ignored, and so is what SIF runtimes need: /.singularity.d and links to it, and
    empty mount points that only one image has.
    """
    if not files and a.endswith(_LOCKS) and b.endswith(_LOCKS):
        differ = _diff_locks(context, Path(a), Path(b), form)
    else:
        differ = _diff_images(context, (a, b), arch, form, owners=not no_owners)
    if differ:
        context_exit(1)


def _diff_locks(context: Context, a: Path, b: Path, form: str) -> bool:
    """Prints what differs between two locks; returns whether anything does."""
    from rich.markup import escape

    from builder.cli.markdown import lock_changes, summary
    from builder.lock.changes import compare_locks
    from builder.lock.file import read_lock

    changes = compare_locks(read_lock(a), read_lock(b))
    text = lock_changes([(b.name, changes)])
    if form == "text":
        lines = [f"{c.name} ({c.manager}): {c.old or 'new'} -> {c.new or 'gone'}" for c in changes.packages]
        if changes.base_moved:
            bases = (changes.old_base, changes.new_base)
            before, after = (f"{base.reference} {base.digest[:19]}" if base else "none" for base in bases)
            lines.append(f"base: {before} -> {after}")
        text = "\n".join([*lines, summary(changes)])
    value = {"a": str(a), "b": str(b), "equal": not changes, **changes.to_json()}
    context.output.result(value, escape(text))
    return bool(changes)


def _diff_images(
    context: Context, names: tuple[str, str], arch: str | None, form: str, *, owners: bool
) -> bool:
    """Prints which files differ between two images; returns whether any does."""
    from rich.markup import escape

    from builder.cli.markdown import file_differences
    from builder.image.convert import image_tree, open_image
    from builder.store.blobs import Store
    from builder.trees.compare import compare_trees

    a, b = names
    store = Store(context.settings.cache)
    images = [
        open_image(name, context.settings, store, architecture=arch, reporter=context.output)
        for name in names
    ]
    trees = []
    for name, image in zip(names, images, strict=True):
        with working(context.output, f"reading {name}"):
            trees.append(image_tree(image, store))
    found = compare_trees(*trees, owners=owners)
    summary = f"{len(found)} paths differ" if found else f"the same {len(trees[0])} files"
    lines = [*_difference_lines(found, a, b), summary]
    text = file_differences(a, b, lines) if form == "markdown" else "\n".join(lines)
    context.output.result(
        {
            "a": a,
            "b": b,
            "equal": not found,
            "files": [len(tree) for tree in trees],
            "differences": [d.to_json() for d in found],
        },
        escape(text),
    )
    return bool(found)


def _difference_lines(found: Sequence[Difference], a: str, b: str) -> Iterator[str]:
    """Returns the first differences, a line each."""
    for d in found[:_SHOWN]:
        if d.kind == "differs":
            text = ", ".join(_change(d, field) for field in d.what)
        else:
            text = f"only in {a if d.kind == 'only-a' else b}"
        yield f"/{d.path}: {text}"
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
