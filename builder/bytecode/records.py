"""What packages record of their compiled modules: rows in RECORD as pip writes them, paths in conda-meta as
conda does.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Sequence

from builder.layers.entry import LinkContext
from builder.model import Manager


def with_bytecode(manager: Manager, record: bytes, pycs: Sequence[str], context: LinkContext) -> bytes:
    """Returns a package's record with its compiled modules.

    Args:
        manager: ``pip`` for a RECORD, ``conda`` for a record in conda-meta.
        record: the content without compiled modules.
        pycs: image paths of the compiled modules.
        context: the prefix and its site-packages.
    """
    root = context.prefix.strip("/")
    below = sorted(posixpath.relpath(path, root) for path in pycs)
    if manager == "conda":
        return _conda_record(record, below)
    return _wheel_record(record, [posixpath.relpath(path, context.site_packages) for path in below])


def _wheel_record(record: bytes, pycs: Sequence[str]) -> bytes:
    """RECORD with rows that have neither hash nor size."""
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows([path, "", ""] for path in pycs)
    return record + rows.getvalue().encode()


def _conda_record(record: bytes, pycs: Sequence[str]) -> bytes:
    data = json.loads(record)
    data["files"] += pycs
    data["paths_data"]["paths"] += [{"_path": path, "path_type": "pyc_file"} for path in pycs]
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"
