"""Measures builder beside other tools, and writes docs/performance.md and its plot from one run.

python -m benchmarks                    # all: an hour, as root; make bench
python -m benchmarks --quick            # small environments, six minutes; the page does not change
python -m benchmarks --only torch       # one part; the page does not change
python -m benchmarks --render           # writes the page again from benchmarks/results.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import CommandFailed
from benchmarks.plot import plot
from benchmarks.report import render, write_page
from benchmarks.run import SIZE, START, Options, bench
from benchmarks.workloads import workloads
from tests.support import parts

_CLONE = Path(__file__).resolve().parents[1]
_FOLDER = (_CLONE / ".cache" / "bench").resolve()
#: The raw figures of the run that the page shows.
_RESULTS = Path(__file__).with_name("results.json")
_PAGE = _CLONE / "docs" / "performance.md"
_PLOT = _CLONE / "docs" / "performance.svg"


def _arguments() -> argparse.Namespace:
    names = [workload.name for workload in workloads(_FOLDER, quick=False)]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small environments, each measured once")
    add(
        "--only",
        action="append",
        default=[],
        choices=[*names, SIZE, START],
        help="measure this part only",
    )
    add(
        "--render",
        action="store_true",
        help="measure nothing: write the page from benchmarks/results.json",
    )
    add("--json", type=Path, help="where the raw figures go (default of short runs: .cache/bench)")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    whole = not given.quick and not given.only
    raw = given.json or (_RESULTS if whole or given.render else _FOLDER / "results-part.json")
    if given.render:
        if not raw.exists():
            print(f"bench: {raw} does not exist: make bench writes it", file=sys.stderr)
            return 1
        _write(json.loads(raw.read_text()))
        return 0
    part = _FOLDER / "results-part.json"

    def save(results: dict[str, Any]) -> None:
        part.write_text(json.dumps(results, indent=1) + "\n")

    try:
        parts.need_root()
        parts.need("docker-registry", "mmdebstrap", "nsenter", "skopeo", "unshare")
        results = bench(Options(_FOLDER, given.quick, given.only, save))
    except (
        CommandFailed,
        subprocess.CalledProcessError,
        pytest.skip.Exception,
        pytest.fail.Exception,
    ) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    raw.write_text(json.dumps(results, indent=1) + "\n")
    print(render(results))
    if whole:
        _write(results)
    print(f"bench: raw figures: {raw}", file=sys.stderr)
    return 0


def _write(results: dict[str, Any]) -> None:
    write_page(render(results), _PAGE)
    if results.get("size"):
        _PLOT.write_text(plot(results["size"], results["date"]))


if __name__ == "__main__":
    sys.exit(main())
