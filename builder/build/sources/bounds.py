"""Bounds of the sources that are unpacked, far above those of real ones (PyTorch: 20,000 files, 300
MB).
"""

from __future__ import annotations

#: Files and folders of one source, its submodules included.
MAX_MEMBERS = 500_000
#: Bytes of all files of one source.
MAX_UNPACKED = 16 << 30
#: Bytes of the tar of a source, with its headers.
MAX_TAR = 2 * MAX_UNPACKED
#: Bytes of a symlink's target, and characters of a path: Linux takes no longer ones (PATH_MAX).
MAX_PATH = 4095
#: Folders in each other.
MAX_DEPTH = 100
#: Repositories of submodules below one repository, and levels of them.
MAX_SUBMODULES = 500
MAX_SUBMODULE_LEVELS = 20
