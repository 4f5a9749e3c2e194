"""Probes of Python: do packages from outside of the image hide the image's own?"""

from __future__ import annotations

import os
import site
import sys

from ..core import Run, fail, warn


def probe_user_site(run: Run) -> str:
    """Packages in ``~/.local`` are not in use."""
    folder = site.getusersitepackages()
    if folder not in sys.path:
        return "not in use"
    if run.module is not None and str(run.module.__file__).startswith(folder):
        seen = f"{run.options.framework} comes from {folder}"
        raise fail(seen, "your own packages hide the image's: export PYTHONNOUSERSITE=1")
    raise warn(f"{folder} is in use", "your own packages may hide the image's: export PYTHONNOUSERSITE=1")


def probe_path(run: Run) -> str:
    """PYTHONPATH and PYTHONHOME are not set."""
    found = [f"{name}={os.environ[name]}" for name in ("PYTHONPATH", "PYTHONHOME") if os.environ.get(name)]
    if found:
        raise warn(" ".join(found), "packages from there may hide the image's: unset the variable")
    return "PYTHONPATH and PYTHONHOME are not set"
