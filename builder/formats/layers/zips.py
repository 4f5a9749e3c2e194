"""Opens zip archives within bounds, and reports what is wrong with a package."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from builder.core.errors import LayerError
from builder.core.model import LockedPackage
from builder.core.text import one_line
from builder.formats.layers import bounds

_ERRORS = (EOFError, OSError, ValueError, IndexError, OverflowError, RuntimeError)
#: What zipfile raises for damaged archives.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, *_ERRORS)
#: Compression methods that packages may use. uv takes no others either, nor does the format of
#: ``.conda``.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


#: Hints for packages that cannot be installed.
_DAMAGED = "the package is damaged or hostile: fetch it again (builder cache prune), or lock another version"
UNSUPPORTED = "builder does not install such packages: lock another version or build of it"


def fault(package: LockedPackage, what: str, hint: str = _DAMAGED) -> LayerError:
    """Return the error for a package that cannot be installed."""
    return LayerError(f"{package.filename}: {one_line(what)}", hint)


def check_size(package: LockedPackage, name: str, size: int, most: int) -> None:
    """Raise LayerError if a file of a package has more bytes than allowed."""
    if size > most:
        raise fault(package, f"{name} has {size} bytes; at most {most} are allowed", UNSUPPORTED)


class ZipSource(io.FileIO):
    """A zip file for :class:`zipfile.ZipFile`, which reads the whole central directory at once.

    More than :data:`bounds.MAX_DIRECTORY` bytes are not read.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > bounds.MAX_DIRECTORY:
            raise zipfile.BadZipFile(
                f"its central directory has {size} bytes; at most {bounds.MAX_DIRECTORY} are allowed"
            )
        return super().read(-1 if size is None else size)


def check_method(info: zipfile.ZipInfo) -> None:
    """Raise BadZipFile if a member is compressed by a method that packages do not use.

    zipfile inflates other methods (bzip2, lzma) without a bound on memory.
    """
    if info.compress_type not in METHODS:
        raise zipfile.BadZipFile(
            f"{info.filename!r} is compressed by method {info.compress_type}; only deflate is supported"
        )
