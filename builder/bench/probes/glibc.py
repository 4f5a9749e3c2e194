"""Probe of the C library: is it new enough for wheels, and for the libraries that come from the host?"""

from __future__ import annotations

import glob
import os
import platform
import re

from ..core import Run, fail, warn
from ..machine.files import file_system, system_path

#: Look at no more libraries of the host than this.
_MAX_LIBRARIES = 300
#: PyTorch's wheels are manylinux_2_28 since 2.6.
_NEEDED_BY_WHEELS = (2, 28)


def probe_glibc(run: Run) -> str:
    """Libraries from the host (--nv, --rocm, bind mounts) load with the image's glibc."""
    name, version = platform.libc_ver()
    if name != "glibc":
        seen = f"the C library is {name or 'not glibc'}"
        raise fail(seen, "packages for Linux need glibc: use a Debian, Ubuntu or RHEL base image")

    own = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    libraries = host_libraries()
    needed, path = max([(needed_glibc(path), path) for path in libraries], default=((0, 0), ""))
    if needed > own:
        number = f"{needed[0]}.{needed[1]}"
        advice = f"host libraries do not load: use a base image with glibc {number} or newer, or bind none"
        raise fail(f"glibc {version}, but {path} needs {number}", advice)
    if own < _NEEDED_BY_WHEELS:
        raise warn(f"glibc {version}", "current wheels need 2.28 or newer: use a newer base image")
    return f"glibc {version}" + (f"; {len(libraries)} libraries of the host fit" if libraries else "")


def host_libraries() -> list[str]:
    """Shared libraries from the host: in Apptainer's folder, and in mounted folders of LD_LIBRARY_PATH."""
    folders = [system_path("/.singularity.d/libs")]
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and file_system(folder)[0] not in ("", "/"):
            folders.append(folder)

    found: set[str] = set()
    for folder in folders:
        found.update(path for path in glob.glob(glob.escape(folder) + "/lib*.so*") if os.path.isfile(path))
    return sorted(found)[:_MAX_LIBRARIES]


def needed_glibc(path: str) -> tuple[int, int]:
    """The newest glibc version that a library names; (0, 0) if none. The names are near its beginning."""
    try:
        with open(path, "rb") as f:
            data = f.read(1 << 20)
    except OSError:
        return (0, 0)
    if not data.startswith(b"\x7fELF"):
        return (0, 0)
    named = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\d]*\0)", data)
    return max(((int(major), int(minor)) for major, minor in named), default=(0, 0))
