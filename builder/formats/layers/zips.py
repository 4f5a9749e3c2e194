"""Opens zip archives within bounds, and reports what is wrong with a package."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from builder.core.errors import LayerError
from builder.core.model import LockedPackage
from builder.core.text import one_line
from builder.formats.layers import bounds

_ERRORS = (EOFError, OSError, ValueError, IndexError, OverflowError, RuntimeError)
#: What zipfile raises for damaged archives.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, *_ERRORS)
#: Hints for packages that cannot be installed.
_DAMAGED = (
    "the package is damaged or hostile: builder cache prune --packages, or lock another version"
)
UNSUPPORTED = "builder does not install such packages: lock another version or build of it"


def fault(package: LockedPackage, what: str, hint: str = _DAMAGED) -> LayerError:
    """Return the error for a package that cannot be installed."""
    return LayerError(f"{package.filename}: {one_line(what)}", hint)


def check_size(package: LockedPackage, name: str, size: int, most: int) -> None:
    """Raise LayerError if a file of a package has more bytes than allowed."""
    if size > most:
        raise fault(package, f"{name} has {size} bytes; at most {most} are allowed", UNSUPPORTED)


class _Zip(io.FileIO):
    """A zip file for :class:`zipfile.ZipFile`, which reads the whole central directory at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > bounds.MAX_DIRECTORY:
            raise zipfile.BadZipFile(
                f"its central directory has {size} bytes; at most {bounds.MAX_DIRECTORY} are allowed"
            )
        return super().read(-1 if size is None else size)


@contextlib.contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip that others made.

    More than :data:`bounds.MAX_DIRECTORY` bytes of its directory are not read. Members of other
    methods (bzip2, lzma) are refused, as uv does: zipfile inflates them without a bound on memory.

    Raises:
        BadZipFile: or another of :data:`ZIP_ERRORS`.
    """
    with _Zip(path) as source, zipfile.ZipFile(cast(IO[bytes], source)) as archive:
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = f"compressed by method {info.compress_type}; only deflate is supported"
                raise zipfile.BadZipFile(f"{info.filename[:200]!r} is {method}")
        yield archive
