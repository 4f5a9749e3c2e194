"""Runs builder, and compares what it asks the file system with its record (builder.core.store.unchanged).

``python -m tests.support.asked WORD...`` prints, as the last line of stderr, a JSON list of the paths that
builder looked at and that the record would not notice: a file that appears there, goes, or is another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_asked: set[str] = set()


def _watch(name: str) -> None:
    real = getattr(os, name)

    def watched(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(path, int) and kwargs.get("dir_fd") is None:
            _asked.add(os.path.abspath(os.fsdecode(path)))
        return real(path, *args, **kwargs)

    setattr(os, name, watched)


def _is_noticed(path: str, prints: dict[str, str], free: tuple[str, ...]) -> bool:
    """Whether a record has a path itself or its folder's names; ``free`` are folders that do not count."""
    folder = os.path.dirname(path)
    known = {key.partition(" ")[2] for key in prints}
    is_parent = any(key.startswith(f"{path.rstrip('/')}/") for key in (*known, *free))  # on the way there
    return path in known or f"content {folder}" in prints or is_parent or path.startswith(free)


def main() -> int:
    """Run the command; return its exit code."""
    for name in ("stat", "lstat", "readlink", "access"):
        _watch(name)
    from builder.cli import cli, run

    code = run(cli, sys.argv[1:], prog_name="builder")
    asked = set(_asked)
    cache = Path(os.environ["BUILDER_CACHE"])
    (record,) = (cache / "unchanged").iterdir()
    prints = json.loads(record.read_bytes().partition(b"\n")[2])["prints"]
    free = (str(cache), "/proc/", "/dev/", sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))
    missed = sorted(path for path in asked if not _is_noticed(path, prints, free))
    print(json.dumps(missed), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
