"""``builder cache``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from builder.core.datafiles import table
from builder.core.errors import BuilderError, ConfigError, UsageError
from builder.core.progress import working
from builder.core.text import Table, human_bytes, parse_bytes

from .context import Context, context_exit, with_context
from .options import flag, option

#: Days after which a file of the cache that was not used is removed.
PRUNE_DAYS = 30


def _size(text: str) -> int:
    """Return the bytes of a value of ``--max-size``. Raise BadParameter if it is no size."""
    size = parse_bytes(text)
    if size is None:
        raise click.BadParameter(f"{text!r} is not a size: write 50G, 50GiB or 500M")
    return size


@click.group()
def cache() -> None:
    """Show or prune the cache of packages, layers and unpacked images."""


@cache.command("info")
@with_context
def cache_info(context: Context) -> None:
    """Show how much the cache holds."""
    from builder.core.store.prune import usage

    with working(context.output, "measuring the cache"):
        folders = usage(context.settings.cache)
    rows = [(folder.name, str(folder.files), human_bytes(folder.size)) for folder in folders]
    context.output.table(Table(("folder", "files", "size"), [*rows]))
    total = sum(p.size for p in folders)
    context.output.result(
        {
            "cache": str(context.settings.cache),
            "bytes": total,
            "folders": {p.name: {"files": p.files, "bytes": p.size} for p in folders},
        },
        f"the cache {context.settings.cache} holds {human_bytes(total)}",
    )


@cache.command("prune")
@option("--older-than", "days", type=click.FloatRange(min=0))
@option("--max-size", "limit", type=_size, metavar="SIZE")
@flag("--packages")
@flag("--all", "everything")
@with_context
def cache_prune(
    context: Context, days: float | None, limit: int | None, packages: bool, everything: bool
) -> None:
    """Remove files that were not used recently, leftovers of killed builds, and untagged images in
    dist/.

    Unpacked images are removed after a day: they take most space, and are made again in seconds.
    What a container uses stays. What killed commands left in the storage of docker and podman is
    removed, too.

    The exit code is 1 if something cannot be removed: a warning names it.

    With --max-size or --packages, what dist/ links to stays, and what was used since the oldest
    running command began.
    """
    from builder.core.store.prune import cache_size

    options = {"--older-than": days is not None, "--max-size": limit is not None}
    options |= {"--packages": packages, "--all": everything}
    given = _only_one(options)
    cache, warnings = context.settings.cache, table(__file__, "cache.yaml")
    if not given:
        days = PRUNE_DAYS
    freed, stuck = prune_all(context, days, limit, packages=packages)
    left, paths = cache_size(cache), list(map(str, stuck))
    text = f"freed {human_bytes(freed)}; {human_bytes(left)} left in {cache}"
    if limit is not None and left > limit:
        context.output.warn(warnings["too_large"].format(size=human_bytes(left)))
    if left and given in ("", "--older-than"):
        text += "; to remove all of it: builder cache prune --all"
    if paths:
        context.output.warn(warnings["stuck"].format(paths=" ".join(map(shlex.quote, paths))))
    context.output.result({"freed": freed, "left": left, "not_removed": paths}, text)
    if paths:
        context_exit(BuilderError.exit_code)


def _only_one(options: Mapping[str, bool]) -> str:
    """Return the option that is given; empty: none. Raise UsageError if there are several."""
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other", "name one of them")
    return "".join(given)


def prune_all(
    context: Context, days: float | None, limit: int | None = None, *, packages: bool = False
) -> tuple[int, list[Path]]:
    """Prune the cache and ``dist/``; return the bytes freed, and the paths that stay.

    Args:
        context: of the command.
        days, limit, packages: see :func:`builder.core.store.prune.prune`.
    """
    from builder.core.store.prune import prune

    freed, settings, stuck = 0, context.settings, set[Path]()
    with working(context.output, "pruning the cache"):
        with contextlib.suppress(ConfigError):  # the cache can be pruned from anywhere
            freed = context.project.prune_layout()
        cache, tmpdir = settings.cache, settings.tmpdir
        freed += prune(cache, tmpdir, days, limit, stuck.add, packages=packages)
    return freed, [path for path in sorted(stuck) if stuck.isdisjoint(path.parents)]
