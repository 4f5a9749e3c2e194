"""Records: small JSON files that carry their own hash, so that a damaged one is never used.

The first line is the SHA-256 of the rest of the file. A file that was cut off or edited counts as
missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .files import write_atomic


def write_record(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write a JSON value for :func:`read_record`. Raises SpaceError."""
    from builder.core.model import canonical_json  # slow, and not needed to read

    data = canonical_json(value)
    write_atomic(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data, mode)


def read_record(path: Path) -> Any:
    """Return the value that :func:`write_record` wrote, or None if the file is missing or damaged.

    Reading sets the file's modification time, the last use for ``builder cache prune``.
    """
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
        with contextlib.suppress(PermissionError):
            os.utime(path)
    except OSError:
        return None
    is_whole = hashlib.sha256(data).hexdigest().encode() == digest
    return json.loads(data) if is_whole else None
