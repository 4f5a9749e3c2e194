"""``builder convert`` and ``builder diff``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.context import Context, common_options, context_exit, pass_context
from builder.errors import UsageError
from builder.text import human_bytes

if TYPE_CHECKING:
    from builder.model import Image

_SHOWN = 40


@click.command()
@click.argument("source")
@click.argument("dest")
@click.option(
    "--layout",
    type=click.Choice(["flat", "layered"]),
    default="flat",
    show_default=True,
    help="Of a SIF: one squashfs, or overlay partitions.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip"]),
    default="zstd",
    show_default=True,
    help="Of a SIF's squashfs.",
)
@click.option("--arch", help="Which architecture of SOURCE (amd64, arm64).")
@common_options
@pass_context
def convert(
    context: Context, source: str, dest: str, layout: str, compression: str, arch: str | None
) -> None:
    """Turn an OCI image into a SIF, or a SIF into an OCI image.

    SOURCE and DEST are FILE.sif, oci:DIR:TAG, oci-archive:FILE or docker-archive:FILE; SOURCE may be docker://host/repository:tag.
    """
    from builder.image.convert import open_image, sif_to_oci, split_image
    from builder.model import SifImage
    from builder.sif.write import write_sif
    from builder.store.blobs import Store

    kind, rest = split_image(dest)
    if kind == "docker":
        raise UsageError(
            f"convert does not write to a registry: {dest}", "write oci:DIR:TAG, and push that: skopeo copy"
        )
    store = Store(context.settings.cache)
    opened = open_image(source, context.settings, store, architecture=arch, reporter=context.output)
    if isinstance(opened, SifImage) == (kind == "sif"):
        both = "SIFs" if kind == "sif" else "OCI images"
        raise UsageError(
            f"{source} and {dest} are both {both}", "copy the file, or use skopeo copy for OCI images"
        )
    if isinstance(opened, SifImage):
        image = sif_to_oci(opened, context.settings, store, context.output)
        _write_oci(image, kind, rest, store)
        size, digest = image.size, image.digest
    else:
        sif = write_sif(
            opened,
            Path(rest),
            context.settings,
            store,
            layout="layered" if layout == "layered" else "flat",
            compression="gzip" if compression == "gzip" else "zstd",
            reporter=context.output,
        )
        size, digest = sif.size, sif.digest
    context.output.result(
        {"source": source, "dest": dest, "from": opened.digest, "digest": digest, "size": size},
        f"{dest} {digest}\n  {human_bytes(size)}",
    )


def _write_oci(image: Image, kind: str, rest: str, store: object) -> None:
    from builder.image.archive import write_docker_archive, write_oci_archive
    from builder.oci.layout import write_layout
    from builder.store.blobs import Store

    path, _, tag = rest.partition(":")
    if kind == "oci":
        assert isinstance(store, Store)
        write_layout(image, Path(path), tag or "latest", store)
    elif kind == "oci-archive":
        write_oci_archive(image, Path(path), tag or "latest")
    else:
        name = tag or f"{Path(path).name.split('.')[0].lower()}:latest"
        write_docker_archive(image, Path(path), name if ":" in name else f"{name}:latest")


@click.command()
@click.option("--files", is_flag=True, required=True, help="Compare the file trees.")
@click.argument("a")
@click.argument("b")
@click.option("--no-owners", is_flag=True, help="Do not compare users and groups.")
@click.option("--arch", help="Which architecture of images for several.")
@common_options
@pass_context
def diff(context: Context, files: bool, a: str, b: str, no_owners: bool, arch: str | None) -> None:
    """Compare two images, OCI or SIF, file by file; the exit code is 1 when they differ.

    A and B are FILE.sif, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or docker://host/repository:tag. Times do not
    count, nor does what the runtime wants: /.singularity.d and links to it, and empty places to mount over that one side has.
    """
    from builder.image.convert import image_tree, open_image
    from builder.store.blobs import Store
    from builder.trees.compare import compare_trees

    store = Store(context.settings.cache)
    opened = [
        open_image(x, context.settings, store, architecture=arch, reporter=context.output) for x in (a, b)
    ]
    trees = [image_tree(x, store) for x in opened]
    found = compare_trees(*trees, owners=not no_owners)
    lines = []
    for d in found[:_SHOWN]:
        if d.kind == "differs" and d.a and d.b:
            lines.append(
                f"/{d.path}: "
                + ", ".join(f"{n} {_show(n, getattr(d.a, n))} -> {_show(n, getattr(d.b, n))}" for n in d.what)
            )
        else:
            lines.append(f"/{d.path}: only in {a if d.kind == 'only-a' else b}")
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more")
    same = f"the same {len(trees[0])} files" if not found else f"{len(found)} paths differ"
    context.output.result(
        {
            "a": a,
            "b": b,
            "equal": not found,
            "files": [len(t) for t in trees],
            "differences": [d.to_json() for d in found],
        },
        "\n".join([*(line.replace("[", r"\[") for line in lines), same]),
    )
    if found:
        context_exit(1)


def _show(name: str, value: object) -> str:
    if name == "mode":
        return f"{value:o}"
    return str(value)[:12] if name == "sha256" else str(value)
