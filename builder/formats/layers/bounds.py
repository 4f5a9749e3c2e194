"""Bounds of packages that are read, far above real ones (torch: 4 GB, 20,000 files)."""

from __future__ import annotations

#: Members of an archive, or paths in its metadata: each needs up to 1 kB of memory.
MAX_MEMBERS = 1_000_000
#: Bytes of a zip's central directory, which zipfile reads at once. 100,000 members need about 15
#: MB.
MAX_DIRECTORY = 32 << 20
#: Bytes of all files of a package.
MAX_UNPACKED = 64 << 30
#: How many times larger than its archive a package may be, once it is larger than
#: :data:`RATIO_FROM`. Real packages reach 20; deflate reaches 1,032, and zstd more.
MAX_RATIO = 250
#: Bytes of files for which no ratio is checked: this much fits on every disk that holds an image.
RATIO_FROM = 1 << 30
#: Bytes of a metadata file with an entry for each file of the package: RECORD, paths.json.
MAX_LISTING = 64 << 20
#: Bytes of any other metadata file, such as entry_points.txt and index.json.
MAX_METADATA = 1 << 20
#: Bytes of all scripts of a wheel whose first line is rewritten, which is done in memory.
MAX_SCRIPTS = 64 << 20
#: Bytes of a path in an image: Linux takes no longer ones (PATH_MAX).
MAX_PATH = 4095
#: Parts of a path in an image: all ancestors of all paths are held in memory. Real ones have up to
#: 30.
MAX_DEPTH = 100
#: Bytes of a zstd frame's window, which is held in memory: that of ``zstd --ultra -22``, and zstd's
#: default.
MAX_ZSTD_WINDOW = 128 << 20


def most_unpacked(packed: int) -> int:
    """Return the most bytes that an archive of ``packed`` bytes may unpack to."""
    return min(MAX_UNPACKED, max(RATIO_FROM, packed * MAX_RATIO))
