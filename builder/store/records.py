"""Records: small JSON files that carry their own hash, so that a damaged one is never used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from builder.model import canonical_json
from builder.store.files import write_atomic


def write_record(path: Path, value: Any) -> None:
    """Writes JSON that :func:`read_record` believes only as long as no byte of it has changed."""
    data = canonical_json(value)
    write_atomic(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def read_record(path: Path) -> Any:
    """What :func:`write_record` wrote, or None when it is not there or damaged."""
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
        with contextlib.suppress(PermissionError):
            os.utime(path)  # when it was last used
    except OSError:
        return None
    return json.loads(data) if hashlib.sha256(data).hexdigest().encode() == digest else None
