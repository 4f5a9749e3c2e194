"""Probes of the system: shared memory, certificates, temporary files, locale, time zone."""

from __future__ import annotations

import os
import sys
import tempfile
import time

from ..core import Run, fail, one_line, warn
from ..machine.files import SHORT_TMP, long_for_sockets, system_path

_ST_NOEXEC = 8


def probe_shm(run: Run) -> str:
    """/dev/shm is large enough and can be written."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as e:
        raise warn(f"/dev/shm: {e.strerror}", "DataLoader workers need it: mount a tmpfs there") from None
    size = stat.f_frsize * stat.f_blocks
    seen = f"/dev/shm has {size / 2**20:.0f} MiB"
    if size < 512 << 20 or not os.access("/dev/shm", os.W_OK):
        advice = (
            "DataLoader workers and NCCL need to write at least 512 MiB there: --shm-size=8g, or --ipc=host"
        )
        raise warn(seen, advice)
    return seen


def probe_certificates(run: Run) -> str:
    """The image has TLS certificates."""
    try:
        import ssl
    except ImportError as e:
        raise warn(
            f"Python's module ssl does not import: {e}", "downloads do not work in this image"
        ) from None

    advice = "https does not work in this image: add ca-certificates, or correct the variable"
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if os.environ.get(name) and not os.path.exists(os.environ[name]):
            raise warn(f"{name}={os.environ[name]} does not exist", advice)

    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        try:
            count = ssl.create_default_context(cafile=paths.cafile).cert_store_stats()["x509_ca"]
        except OSError as e:  # ssl.SSLError is a subclass
            raise warn(f"{paths.cafile}: {one_line(e)}", advice) from None
        if not count:
            raise warn(f"{paths.cafile} holds no certificate", advice)
        return str(paths.cafile)
    if not (paths.capath and os.path.isdir(paths.capath) and os.listdir(paths.capath)):
        raise warn(f"no certificates at {paths.openssl_cafile} or {paths.openssl_capath}", advice)
    return str(paths.capath)


def probe_tmp(run: Run) -> str:
    """There is space for temporary files, and programs may run there."""
    try:
        folder = tempfile.gettempdir()
    except OSError as e:
        advice = "programs need a folder for temporary files: bind one at /tmp, or set TMPDIR"
        raise fail(one_line(e), advice) from None
    stat = os.statvfs(folder)
    if stat.f_flag & _ST_NOEXEC:
        advice = (
            "what Triton, torch.compile and MIOpen compile there cannot run: "
            "set TMPDIR to a folder on a file system that is mounted with exec"
        )
        raise warn(f"{folder} is mounted noexec", advice)
    free = stat.f_frsize * stat.f_bavail
    if free < 64 << 20:
        raise warn(f"{folder} has {free / 2**20:.0f} MiB free", "free some space there, or set TMPDIR")
    if long_for_sockets(folder):
        raise warn(f"{folder} is too long a path for sockets", SHORT_TMP)
    return f"{folder}, {free / 2**30:.1f} GiB free"


def probe_locale(run: Run) -> str:
    """File names are UTF-8."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise warn(f"file names are encoded as {encoding}", "export LANG=C.UTF-8")
    return encoding


def probe_time_zone(run: Run) -> str:
    """The image has the time zone that the host names."""
    zone = os.environ.get("TZ", "").lstrip(":")
    file = zone if zone.startswith("/") else system_path("/usr/share/zoneinfo/" + zone)
    if "/" in zone and not os.path.exists(file):
        seen = f"TZ={zone}, but the image has no such time zone: times are UTC"
        raise warn(seen, "add tzdata to the image, or bind the host's /usr/share/zoneinfo")

    local = system_path("/etc/localtime")
    if not zone and os.path.islink(local) and not os.path.exists(local):
        seen = f"/etc/localtime is a link to {os.readlink(local)}, which does not exist: times are UTC"
        raise warn(seen, "bind the host's /usr/share/zoneinfo, or add tzdata to the image")
    return f"{time.tzname[0]} (UTC{time.strftime('%z')})"
