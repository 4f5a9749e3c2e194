"""What the cache holds, and removing what was not used for a while.

The folders of ``BUILDER_CACHE``: ``blobs`` (packages, layers, base images, by digest), ``seen`` (fingerprints of files outside
the cache), ``partial`` (downloads to be resumed), ``layers`` and ``index`` (what is known of both), ``rootfs`` (images unpacked
for the embedded runner), ``sif`` (SIFs that were built, and what engines built last), ``channels``, ``repodata`` and ``uv``
(what the solvers know), ``tmp``, ``locks``. Removing any of them costs time, never a result.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from builder.store import Store

_BLOB = re.compile(rb'"digest":"sha256:([0-9a-f]{64})"')


@dataclass(frozen=True)
class Part:
    """One folder of the cache; ``size`` in bytes on disk as files say."""

    name: str
    files: int
    size: int


def usage(cache: Path) -> list[Part]:
    """The parts of a cache, by name; empty when there is none."""
    if not cache.is_dir():
        return []
    parts = []
    for folder in sorted(p for p in cache.iterdir() if p.is_dir()):
        sizes = [p.lstat().st_size for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()]
        parts.append(Part(folder.name, len(sizes), sum(sizes)))
    return parts


def prune(cache: Path, days: float | None, layout: Path | None = None) -> int:
    """Removes what was last used over ``days`` ago (everything when None), and what killed builds left.

    Of ``layout``, an OCI layout, go the blobs that no tag needs. Gives the bytes freed. Locks stay: another build may hold one.

    Raises:
        ImageError: ``layout`` is there and is not a whole OCI layout.
    """
    from builder.image.layout import prune_layout

    freed = prune_layout(layout) if layout is not None and (layout / "index.json").exists() else 0
    return freed + _prune_cache(cache, days)


def _prune_cache(cache: Path, days: float | None) -> int:
    if not cache.is_dir():
        return 0
    before = sum(p.size for p in usage(cache))
    if days is None:
        for folder in cache.iterdir():
            if folder.is_dir() and folder.name != "locks":
                _remove_tree(folder)
        return before - sum(p.size for p in usage(cache))
    Store(cache).sweep()
    oldest = time.time() - days * 86400
    for blob in (cache / "blobs").glob("*/*"):
        if blob.suffix != ".seen" and _last_used(blob) < oldest:
            blob.unlink(missing_ok=True)
            blob.with_name(blob.name + ".seen").unlink(missing_ok=True)
    _prune_uv(cache / "uv", oldest)
    for record in (cache / "layers").glob("*.json"):  # worth as much as the blobs that they name
        if not all((cache / "blobs" / "sha256" / name.decode()).exists() for name in _BLOB.findall(record.read_bytes())):
            record.unlink(missing_ok=True)
    for name in ("seen", "partial", "index", "smoke", "repodata"):
        for path in (cache / name).rglob("*"):
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
    for name in ("rootfs", "sif", "tmp"):
        for path in (cache / name).glob("*"):
            if path.lstat().st_mtime < oldest:
                if path.is_dir() and not path.is_symlink():
                    _remove_tree(path)
                else:
                    path.unlink(missing_ok=True)
    return before - sum(p.size for p in usage(cache))


def _prune_uv(folder: Path, oldest: float) -> None:
    """Empties uv's cache when it was begun before ``oldest``: its parts point at each other, so none can go alone.

    uv itself holds the lock while it runs; then the cache stays.
    """
    try:
        if (folder / "CACHEDIR.TAG").stat().st_mtime >= oldest:
            return
        with (folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in folder.iterdir():
                if path.is_dir():
                    _remove_tree(path)
            (folder / "CACHEDIR.TAG").unlink()  # last: until then it is still old
    except OSError:
        return  # there is none, or it is in use


def _last_used(blob: Path) -> float:
    seen = blob.with_name(blob.name + ".seen")
    return max(p.stat().st_mtime for p in (blob, seen) if p.exists())


def _remove_tree(folder: Path) -> None:
    """Removes a folder even where an image's own modes forbid it (a root file system unpacked by this user)."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
