"""Debian packages in private folders: apt downloads and verifies them from this machine's mirror, with lists
and settings of its own. Nothing of the host is changed, and no rights are needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder.formats.net.apt import apt_sources


class NotInstalled(Exception):
    """Why a part is not available."""

    @classmethod
    def because(cls, what: str, error: Exception) -> NotInstalled:
        """With the last line of what a command said."""
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        return cls(f"{what}: {' '.join((said or str(error)).strip().splitlines()[-1:])}")


def download(work: Path, packages: Sequence[str], suites: Sequence[str]) -> list[Path]:
    """Downloads these packages (``name/suite``), without what they depend on; returns the .deb files.

    Args:
        work: an empty folder.
        packages: their names.
        suites: of Debian, where they are; the first is the one whose sources are read.
    """
    call([*apt_of(work, suites), "download", *packages], work / "debs")
    return sorted((work / "debs").glob("*.deb"))


def apt_of(work: Path, suites: Sequence[str]) -> list[str | Path]:
    """The command line of an apt-get for these suites of Debian, which knows no installed package."""
    stanzas = [_only(block, suites) for block in apt_sources(suites[0]).split("\n\n")]
    return _private_apt(work, "\n\n".join(s for s in stanzas if s), work / "status")


def extract(packages: Sequence[str], suite: str, folder: Path) -> None:
    """Unpacks packages of a suite of Debian and all that they depend on, but runs none of their scripts."""
    stanzas = [_only(block, [suite]) for block in apt_sources(suite).split("\n\n")]
    options = [f"--include={','.join(packages)}", "--aptopt=Acquire::Check-Valid-Until false"]
    with tempfile.NamedTemporaryFile("w", suffix=".sources") as sources:
        sources.write("\n\n".join(s for s in stanzas if s))
        sources.flush()
        call(["mmdebstrap", "--quiet", "--variant=extract", *options, suite, folder, sources.name])


def unpack(debs: Sequence[Path], folder: Path) -> None:
    for deb in debs:
        call(["dpkg", "-x", deb, folder])


def call(command: Sequence[str | Path], folder: Path | None = None, **more: str) -> str:
    """Runs a command; returns its output. Raises CalledProcessError, with the command's messages."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", **more},
    )
    return done.stdout


def _private_apt(work: Path, sources: str, status: Path) -> list[str | Path]:
    """The command line of an apt-get of its own, whose lists are up to date."""
    (work / "sources.list.d").mkdir()
    (work / "sources.list.d/debian.sources").write_text(sources)
    for folder in ("lists/partial", "cache/archives/partial", "debs"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    options = {
        "Dir::Etc::SourceList": "-",
        "Dir::Etc::SourceParts": work / "sources.list.d",
        "Dir::Etc::Preferences": "-",
        "Dir::Etc::PreferencesParts": "-",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": status,
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Retries": "3",
    }
    apt: list[str | Path] = ["apt-get", "-qq", *(f"-o{k}={v}" for k, v in options.items())]
    call([*apt, "update"], work)
    return apt


def _only(stanza: str, suites: Sequence[str]) -> str:
    """A source with these suites alone; nothing when it does not have the first of them."""
    line = re.search(r"^Suites: (.*)$", stanza, re.M)
    if line is None or suites[0] not in line[1].split():
        return ""
    return stanza.replace(line[0], f"Suites: {' '.join(suites)}")
