"""The smoke test in every image: builder/bench as one file, which Python runs.

The file is a zip. Python runs any zip that has a ``__main__.py`` at its top, under any file name,
so that ``python /opt/builder/smoke.py`` works. The package's modules stay separate files in it:
tracebacks name them, and relative imports work. Everything is stored uncompressed, so that the file
can be read in the image even by a Python without zlib, and its bytes do not depend on a version of
zlib.
"""

from __future__ import annotations

import functools
import io
import stat
import zipfile
from pathlib import Path

from builder import bench
from builder.core.datafiles import script

#: The package's name in the zip.
PACKAGE = "bench"
#: Files of other kinds, such as compiled modules or an editor's backups, are left out.
SUFFIXES = frozenset({".py"})

_UNIX = 3
#: The earliest time that a zip can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


@functools.cache
def smoke_program() -> bytes:
    """Return the smoke test as one file; the same bytes for the same sources."""
    return pack(Path(bench.__file__).parent)


def pack(package: Path) -> bytes:
    """Return a package as a zip that Python runs; its ``main.main()`` returns the exit code.

    The bytes depend on the content of its files only, not on their times, modes or order.
    """
    members = {"__main__.py": script(__file__, "smoke_main.txt", package=PACKAGE).encode()}
    for path in package.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file():
            members[f"{PACKAGE}/{path.relative_to(package).as_posix()}"] = path.read_bytes()

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _TIME)
            info.create_system = _UNIX
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, members[name])
    return out.getvalue()
