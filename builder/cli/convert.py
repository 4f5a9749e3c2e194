"""``builder convert`` and ``builder diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from builder.cli.context import Context, context_exit, with_context
from builder.cli.options import choice
from builder.text import human_bytes
from builder.workspace import Workspace


@click.command()
@click.argument("source")
@click.argument("dest")
@choice(
    "--compression",
    of=["zstd", "gzip"],
    help="Compression of a squashfs. Default: zstd in a SIF, gzip in a FILE.sqsh.",
)
@click.option("--arch", help="Architecture to take if SOURCE has several (amd64, arm64).")
@with_context
def convert(
    context: Context,
    source: str,
    dest: str,
    compression: Literal["zstd", "gzip"] | None,
    arch: str | None,
) -> None:
    """Convert an OCI image to a SIF or a plain squashfs.

    SOURCE is oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE or docker://host/repository:tag.
    DEST is FILE.sif, or FILE.sqsh: a plain squashfs for enroot and CSCS's Container Engine.
    """
    from builder.image.convert import convert_image

    made = convert_image(
        source,
        dest,
        Workspace.of(context.settings, context.output),
        compression=compression,
        architecture=arch,
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
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@choice(
    "--format",
    "form",
    of=["text", "markdown"],
    default="text",
    help="markdown: for release notes and pull requests.",
)
@with_context
def diff(context: Context, a: Path, b: Path, form: str) -> None:
    """Compare the packages and the base images of two lock files. Exit with 1 if they differ."""
    from builder.cli.markdown import lock_changes, summary
    from builder.lock.changes import compare_locks
    from builder.lock.file import read_lock

    changes = compare_locks(read_lock(a), read_lock(b))
    text = lock_changes([(b.name, changes)])
    if form == "text":
        lines = [
            f"{c.name} ({c.manager}): {c.old or 'new'} -> {c.new or 'gone'}"
            for c in changes.packages
        ]
        if changes.base_moved:
            bases = (changes.old_base, changes.new_base)
            names = (f"{base.reference} {base.digest[:19]}" if base else "none" for base in bases)
            lines.append(f"base: {' -> '.join(names)}")
        text = "\n".join([*lines, summary(changes)])
    value = {"a": str(a), "b": str(b), "equal": not changes, **changes.to_json()}
    context.output.result(value, text)
    if changes:
        context_exit(1)
