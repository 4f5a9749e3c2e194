"""Compares builder's reader of environment files with conda-lock's parser, file by file.

    python scripts/compare_environments.py FOLDER

Every ``environment*.yml`` and ``environment*.yaml`` below FOLDER is read with both for linux-64. Compared are
the channels, and of each conda package the name, the channel and which versions and builds its spec allows.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from builder.errors import BuilderError
from builder.lock.condaspec import split_channel
from builder.lock.environment import read_environment

Package = tuple[str, str, str, str]


def ours(path: Path) -> tuple[list[str], set[Package]]:
    """Channels and packages as builder reads them."""
    from rattler import MatchSpec

    environment = read_environment(path, "linux-64")
    found = set()
    for spec in environment.conda:
        part = split_channel(spec.text)
        parsed = MatchSpec(part.rest if part else spec.text)
        found.add(_package(spec.name, part.text if part else "", parsed.version, parsed.build))
    return list(environment.channels), found


def theirs(path: Path, mapping: str) -> tuple[list[str], set[Package]]:
    """Channels and packages as conda-lock reads them."""
    from conda_lock.src_parser.environment_yaml import parse_environment_file
    from rattler import MatchSpec

    parsed = parse_environment_file(path, ["linux-64"], mapping_url=mapping)
    found = set()
    for dependency in parsed.dependencies["linux-64"]:
        values: Any = dependency
        if values.manager != "conda":
            continue
        spec = MatchSpec(f"{values.name} {values.version or '*'} {values.build or '*'}")
        found.add(_package(values.name, values.conda_channel or "", spec.version, spec.build))
    # conda-lock keeps the plain pip that a pip section implies beside a pip with a version; builder does not
    if len([package for package in found if package[0] == "pip"]) > 1:
        found.discard(("pip", "", "*", "*"))
    return [channel.url for channel in parsed.channels], found


def _package(name: str, channel: str, version: Any, build: Any) -> Package:
    return name.lower(), channel, str(version or "*"), str(build or "*")


def main(folder: Path) -> None:
    """Prints each difference, and the counts."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({}, file)
        file.flush()
        for path in sorted(folder.rglob("environment*.y*ml")):
            counts[_compare(path, file.name)] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))


def _compare(path: Path, mapping: str) -> str:
    results = []
    for read in (lambda: ours(path), lambda: theirs(path, mapping)):
        try:
            results.append(read())
        except BuilderError as e:
            results.append(e)
        except Exception as e:  # conda-lock's errors share no base class
            results.append(ValueError(f"{type(e).__name__}: {str(e)[:150]}"))
    one, other = results
    if isinstance(one, Exception) and isinstance(other, Exception):
        return "refused by both"
    if isinstance(one, Exception) or isinstance(other, Exception):
        refused, by = (one, "builder") if isinstance(one, Exception) else (other, "conda-lock")
        print(f"{path}: refused by {by}: {refused}")
        return f"refused by {by} only"
    if one == other:
        return "identical"
    (channels, packages), (other_channels, other_packages) = one, other
    print(f"{path}: builder only: {sorted(packages - other_packages)}; conda-lock only: ", end="")
    print(f"{sorted(other_packages - packages)}; channels: {channels} {other_channels}")
    return "different"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
