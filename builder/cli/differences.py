"""What ``builder diff`` shows: packages, layers and figures, as tables and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.bench.report import format_value
from builder.core.errors import LockError
from builder.core.model import Lock
from builder.core.text import Table, human_bytes
from builder.deliver.publishing.published import PublishedImage, open_published, published_reference
from builder.deliver.publishing.release_changes import ReleaseChanges, compare_published
from builder.lock.changes import LockChanges, compare_locks
from builder.lock.file import read_lock

from .context import Context
from .markdown import lock_changes, package_table, section

#: Layers that are listed, the largest ones.
_LAYERS = 15


def compare(context: Context, a: str, b: str) -> LockChanges | ReleaseChanges:
    """Return the changes from A to B, as ``builder diff`` takes them.

    Raises:
        LockError, ConfigError, UsageError, RegistryError, ImageError: one of them does not exist,
            or is damaged; an image has no attached lock.
    """
    old, new = _side(context, a), _side(context, b)
    if isinstance(old, PublishedImage) and isinstance(new, PublishedImage):
        return compare_published(old, new)
    return compare_locks(*(side if isinstance(side, Lock) else side.lock() for side in (old, new)))


def _side(context: Context, text: str) -> Lock | PublishedImage:
    """Return the lock of a file, or the published image that a text names."""
    is_file = Path(text).exists()
    reference = "" if is_file else published_reference(text, lambda: context.project)
    if reference:
        return open_published(reference, context.work)
    if not is_file:
        hint = "name a lock file, or a published image: TARGET:TAG or HOST/REPOSITORY:TAG"
        raise LockError(f"{text}: no such lock file", hint)
    return read_lock(Path(text))


def tables(changes: LockChanges | ReleaseChanges) -> list[Table]:
    """Return the packages that differ; of images the layers and the figures, too."""
    if isinstance(changes, LockChanges):
        return [package_table(changes)]
    return [package_table(changes.locks), _layers(changes), _figures(changes)]


def as_markdown(name: str, changes: LockChanges | ReleaseChanges) -> str:
    """Return the same under a heading with the name of the newer lock or image."""
    locks = changes if isinstance(changes, LockChanges) else changes.locks
    others = [line for one in tables(changes)[1:] for line in section(one)]
    return "\n".join([lock_changes([(name, locks)]), *others])


def _layers(changes: ReleaseChanges) -> Table:
    listed = sorted(changes.layers, key=lambda layer: -max(layer.old or 0, layer.new or 0))
    rows: list[Sequence[str]] = [
        (layer.name, _size(layer.old, "new"), _size(layer.new, "gone")) for layer in listed
    ]
    if more := len(rows[_LAYERS:]):
        rows[_LAYERS:] = [(f"{more} smaller layers", "", "")]
    old, new, sent = map(human_bytes, (changes.old.size, changes.new.size, changes.download))
    title = f"Image: {old} -> {new}; an update downloads {sent}."
    return Table(("layer", "before", "after"), rows, title)


def _size(size: int | None, otherwise: str) -> str:
    return otherwise if size is None else human_bytes(size)


def _figures(changes: ReleaseChanges) -> Table:
    sides = [
        f"{report.report['verdict']} ({report.started[:10]})" if report else "no report"
        for report in changes.reports
    ]
    figures = changes.figures.changes if changes.figures else ()
    rows: list[Sequence[str]] = [
        (
            figure.id,
            *(format_value(value, figure.unit) for value in (figure.old, figure.new)),
            f"{100 * (figure.ratio - 1):+.1f} %",
        )
        for figure in figures
    ]
    models = ", ".join(dict.fromkeys(figure.model for figure in figures))
    title = f"Smoke test: {' -> '.join(sides)}."
    caption = f"on {models}" if models else "no figure of both was measured on the same device"
    return Table(("figure", "before", "after", "speed"), rows, title, caption)
