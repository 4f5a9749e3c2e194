"""``builder cache``."""

from __future__ import annotations

import contextlib

import click
from rich.table import Table

from builder.cli.context import Context, common_options, context_exit, pass_context
from builder.errors import BuilderError, ConfigError
from builder.progress import working
from builder.text import human_bytes


@click.group()
def cache() -> None:
    """Show, verify or prune the cache of packages, layers and unpacked images."""


@cache.command("info")
@common_options
@pass_context
def cache_info(context: Context) -> None:
    """Show how much the cache holds."""
    from builder.store.prune import usage

    with working(context.output, "measuring the cache"):
        folders = usage(context.settings.cache)
    table = Table("folder", "files", "size", box=None)
    for folder in folders:
        table.add_row(folder.name, str(folder.files), human_bytes(folder.size))
    context.output.table(table)
    total = sum(p.size for p in folders)
    context.output.result(
        {
            "cache": str(context.settings.cache),
            "bytes": total,
            "folders": {p.name: {"files": p.files, "bytes": p.size} for p in folders},
        },
        f"the cache {context.settings.cache} holds {human_bytes(total)}",
    )


@cache.command("verify")
@common_options
@pass_context
def cache_verify(context: Context) -> None:
    """Hash all blobs, records and SIFs of the cache, and remove what is corrupt; exit code 1 if anything was.

    The next build makes or downloads again what was removed.
    """
    from builder.sif.digests import remembered_digest
    from builder.store.blobs import Store
    from builder.store.verify import verify_cache

    settings, output = context.settings, context.output
    store = Store(settings.cache)
    sifs = [(path, remembered_digest(path, store)) for path in store.folders.sif.glob("*.sif")]
    known = [(path, digest) for path, digest in sifs if digest is not None]
    found = verify_cache(store, known, jobs=settings.jobs, reporter=output)
    for corrupt in found.corrupt:
        output.warn(f"{corrupt.path} was corrupt and is removed: {corrupt.reason}")
    if any(corrupt.is_linked for corrupt in found.corrupt):
        output.warn("files in dist/ or in another OCI layout are the same: build again, which replaces them")
    what = f"{found.files} files, {human_bytes(found.size)} in {settings.cache}"
    output.result(
        {
            "cache": str(settings.cache),
            "files": found.files,
            "bytes": found.size,
            "corrupt": [{"path": str(c.path), "reason": c.reason} for c in found.corrupt],
        },
        f"{what}: {len(found.corrupt)} corrupt, removed" if found.corrupt else f"{what}: all are right",
    )
    if found.corrupt:
        context_exit(BuilderError.exit_code)


@cache.command("prune")
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Days since the last use.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Remove everything except lock files and records of what was published and not read back.",
)
@common_options
@pass_context
def cache_prune(context: Context, days: float, everything: bool) -> None:
    """Remove files that were not used recently, leftovers of killed builds, and untagged images in dist/.

    Unpacked images are removed after a day: they take most space, and are made again in seconds. What a
    container uses stays. What killed commands left in the storage of docker and podman is removed, too.
    """
    from builder.run.select import remove_engine_leftovers
    from builder.store.prune import prune, usage

    freed = 0
    with working(context.output, "pruning the cache"):
        with contextlib.suppress(ConfigError):  # the cache can be pruned from anywhere
            freed = context.project.prune_layout()
        freed += prune(context.settings.cache, None if everything else days)
        remove_engine_leftovers()
        left = sum(folder.size for folder in usage(context.settings.cache))
    text = f"freed {human_bytes(freed)}; {human_bytes(left)} left in {context.settings.cache}"
    if left and not everything:
        text += "; to remove all of it: builder cache prune --all"
    context.output.result({"freed": freed, "left": left}, text)
