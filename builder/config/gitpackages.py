"""Whether a lock file of conda-lock names git repositories, without reading it as YAML.

A recipe decides with it where its own lock file is, many times in one command.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.config.safeyaml import read_bytes

#: Where the next package begins: conda-lock indents its list by no blank or by two.
_ITEM = re.compile(rb"^ {0,2}- ", re.MULTILINE)
_GIT = re.compile(rb"^[ -]*url: ['\"]?git\+", re.MULTILINE)


def has_git_packages(path: Path, platform: str) -> bool:
    """Whether a package of the platform has the URL of a git repository. No file: False.

    Args:
        path: the lock file, as conda-lock writes it.
        platform: conda's name of the platform.
    """
    try:
        raw = read_bytes(path)
    except OSError:  # what reads the lock reports it
        return False
    if b"git+" not in raw:
        return False
    wanted = re.compile(rb"^[ -]*platform: ['\"]?" + re.escape(platform.encode()) + rb"\b", re.MULTILINE)
    return any(_GIT.search(item) and wanted.search(item) for item in _ITEM.split(raw))
