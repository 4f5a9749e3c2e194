"""Reads conda packages for tests: all entries with their content, by path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.core.model import Fetched
from builder.formats.layers.conda import conda_entries
from builder.formats.layers.content import read_whole
from builder.formats.layers.entry import Entry, LinkContext
from tests.support.condapackage import Extension

CONTEXT = LinkContext("/opt/conda", "3.11", "lib/python3.11/site-packages")
EXTENSIONS: tuple[Extension, ...] = (".conda", ".tar.bz2")


def read(
    package: Fetched, tmp_path: Path, context: LinkContext = CONTEXT, leave_out: Sequence[str] = ()
) -> dict[str, tuple[Entry, bytes]]:
    """All entries with their content, by path. Uses the folder ``spool`` in ``tmp_path``."""
    entries = conda_entries(package, context, tmp_path / "spool", frozenset(leave_out))
    return {e.path: (e, read_whole(e) if e.kind == "file" else b"") for e in entries}


def record(found: dict[str, tuple[Entry, bytes]]) -> dict[str, Any]:
    """The package's record in conda-meta, from the result of :func:`read`."""
    (path,) = [p for p in found if "/conda-meta/" in p]
    return json.loads(found[path][1])
