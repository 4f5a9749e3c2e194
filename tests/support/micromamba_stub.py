"""A stand-in for micromamba: it answers what conda-lock asks, in micromamba's form, with rattler's solver.

conda-lock calls ``micromamba --version`` and ``micromamba create --prefix DIR --dry-run --json
--override-channels --channel URL... SPEC...``, and reads ``actions.FETCH`` of the answer: repodata records.
``conda-lock install`` calls ``micromamba create --quiet --file FILE --yes --name NAME``, with lines
``URL#MD5``, and ``micromamba run --name NAME COMMAND...``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
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
    if "--name" in words:
        return _environment(words)
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


def _environment(words: list[str]) -> int:
    """Makes an environment, or runs a command in it."""
    name = words.index("--name") + 1
    prefix = Path(os.environ["MAMBA_ROOT_PREFIX"], "envs", words[name])
    if words[0] == "run":
        path = f"{prefix / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(words[name + 1 :], env={**os.environ, "PATH": path}).returncode
    lines = Path(words[words.index("--file") + 1]).read_text().splitlines()
    asyncio.run(_install([line for line in lines if "://" in line and not line.startswith("#")], prefix))
    return 0


async def _install(lines: list[str], prefix: Path) -> None:
    """Installs the packages ``URL#MD5``."""
    from rattler import Channel, Gateway, install

    channels = [Channel(channel) for channel in {line.rsplit("/", 2)[0] for line in lines}]
    names = [line.rsplit("/", 1)[1].rsplit("-", 2)[0] for line in lines]
    found = await Gateway().query(channels, ["linux-64", "noarch"], names, recursive=False)
    records = [record for part in found for record in part]
    wanted = [record for record in records if f"{record.url}#{record.md5.hex()}" in lines]
    assert len(wanted) == len(lines), lines
    await install(wanted, prefix, show_progress=False)


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
