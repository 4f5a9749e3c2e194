"""A stand-in for micromamba: it answers what conda-lock asks, in micromamba's form, with rattler's solver.

conda-lock calls ``micromamba --version`` and ``micromamba create --prefix DIR --dry-run --json
--override-channels --channel URL... SPEC...``, and reads ``actions.FETCH`` of the answer: repodata records.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


def write_stub(folder: Path) -> Path:
    """Writes an executable ``micromamba`` into a folder."""
    path = folder / "micromamba"
    path.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    path.chmod(0o755)
    return path


def main(words: list[str]) -> int:
    if words == ["--version"]:
        print("2.3.3")
        return 0
    channels = [words[i + 1] for i, word in enumerate(words) if word == "--channel"]
    options = ("--prefix", "--channel")
    specs = [w for i, w in enumerate(words[1:], 1) if not w.startswith("--") and words[i - 1] not in options]
    try:
        records = asyncio.run(_solve(channels, specs))
    except Exception as e:
        print(json.dumps({"success": False, "message": str(e)}))
        return 1
    print(json.dumps({"success": True, "dry_run": True, "actions": {"FETCH": records, "LINK": records}}))
    return 0


async def _solve(channels: list[str], specs: list[str]) -> list[dict[str, Any]]:
    from rattler import Channel, Gateway, solve

    platforms: Any = [os.environ["CONDA_SUBDIR"], "noarch"]
    records = await solve([Channel(c) for c in channels], specs, gateway=Gateway(), platforms=platforms)
    return [
        {
            "name": record.name.normalized,
            "version": str(record.version),
            "build": str(record.build),
            "subdir": record.subdir,
            "fn": record.file_name,
            "url": record.url,
            "depends": record.depends,
            "md5": record.md5.hex() if record.md5 else "",
            "sha256": record.sha256.hex() if record.sha256 else "",
        }
        for record in records
    ]


if __name__ == "__main__":
    from builder.cli.leave import leave  # rattler's threads may crash an interpreter that ends normally

    leave(main(sys.argv[1:]))
