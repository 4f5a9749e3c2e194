"""Probe of MIOpen's cache (AMD GPUs)."""

from __future__ import annotations

import os
import re

from ..core import Run, skip, warn
from ..machine.files import file_system, writable

_NETWORK_FILE_SYSTEMS = re.compile(
    "lustre|nfs4?|gpfs|beegfs|ceph|cifs|smb3|smbfs|9p|afs|"
    "panfs|wekafs|orangefs|pvfs2|fuse.(sshfs|ceph.*|gluster.*)"
)


def probe_cache(run: Run) -> str:
    """MIOpen can store its databases and compiled kernels on a local file system."""
    if run.build != "HIP":
        raise skip("no MIOpen")
    home = os.environ.get("HOME") or "/"
    folders = {
        "MIOPEN_USER_DB_PATH": os.environ.get("MIOPEN_USER_DB_PATH") or home + "/.config/miopen",
        "MIOPEN_CUSTOM_CACHE_DIR": os.environ.get("MIOPEN_CUSTOM_CACHE_DIR") or home + "/.cache/miopen",
    }
    for variable, folder in folders.items():
        advice = f"set {variable} to a local folder of the node, such as /tmp/$USER-miopen"
        kind = file_system(folder)[1]
        if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
            seen = f"{folder} is on a network file system ({kind})"
            raise warn(seen, f"MIOpen's SQLite databases fail or are slow there: {advice}")
        if not writable(folder):
            seen = f"{folder} cannot be written"
            raise warn(seen, f"every process searches and compiles its kernels again: {advice}")
    return " ".join(folders.values())
