"""What the cache holds, and removing what was not used for a while.

The folders of ``BUILDER_CACHE``: ``blobs`` (packages, layers, base images, by digest), ``seen`` (fingerprints of files outside
the cache), ``partial`` (downloads to be resumed), ``layers`` and ``index`` (what is known of both), ``rootfs``
(images unpacked for the embedded runner), ``channels``, ``uv``, ``tmp``, ``locks``. Removing any of them
costs time, never a result.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from builder.store import Store


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


def prune(cache: Path, days: float | None) -> int:
    """Removes what was last used over ``days`` ago (everything when None), and what killed builds left.

    Gives the bytes freed. Locks stay: another build may hold one.
    """
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
    for name in ("seen", "partial", "layers", "index", "smoke"):
        for path in (cache / name).rglob("*"):
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
    for name in ("rootfs", "tmp"):
        for path in (cache / name).glob("*"):
            if path.lstat().st_mtime < oldest:
                if path.is_dir() and not path.is_symlink():
                    _remove_tree(path)
                else:
                    path.unlink(missing_ok=True)
    return before - sum(p.size for p in usage(cache))


def _last_used(blob: Path) -> float:
    seen = blob.with_name(blob.name + ".seen")
    return max(p.stat().st_mtime for p in (blob, seen) if p.exists())


def _remove_tree(folder: Path) -> None:
    """Removes a folder even where an image's own modes forbid it (a root file system unpacked by this user)."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
