"""Probe of the home directory, which many container runtimes bind from the host."""

from __future__ import annotations

import os
import sys

from ..core import Run, fail, warn
from ..machine.files import file_system, within

#: Variables with paths that an image may have below a home directory.
_PATHS = ("CONDA_PREFIX", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
#: A missing path in one of these breaks the image. The other variables may name folders that no image ever
#: had.
_ESSENTIAL = ("CONDA_PREFIX=", "SSL_CERT")


def probe_home(run: Run) -> str:
    """The home directory exists, can be written, and hides nothing of the image."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    advice = (
        "torch, Triton and MIOpen store caches there: bind a home directory, or set HOME to a writable folder"
    )
    if not os.path.isdir(home):
        raise warn(f"HOME={home} does not exist", advice)

    mounted = file_system(home)[0] not in ("", "/")
    if mounted and home != "/":
        _check_hidden(home)
    if not os.access(home, os.W_OK):
        raise warn(f"HOME={home} cannot be written", advice)
    return f"{home} (mounted)" if mounted else home


def _check_hidden(home: str) -> None:
    """Raises an outcome if a mounted home directory hides files of the image."""
    if within(sys.prefix, home):
        seen = f"python runs from {sys.prefix}, in a home directory that is mounted over the image's"
        raise fail(seen, "the image's own python is hidden: use --no-home, or an environment outside of home")
    hidden = _hidden_paths(home)
    if not hidden:
        return
    seen = f"HOME={home} is mounted from elsewhere, and {hidden[0]} does not exist there"
    outcome = fail if hidden[0].startswith(_ESSENTIAL) else warn
    raise outcome(
        seen, "the mounted home directory hides the image's files: use --no-home, or set another HOME"
    )


def _hidden_paths(home: str) -> list[str]:
    """``VARIABLE=path`` for each path in the home directory that does not exist."""
    usual = ("/.local/bin", home + "/bin")
    hidden = []
    for variable in _PATHS:
        for path in os.environ.get(variable, "").split(":"):
            if within(path, home) and not os.path.exists(path) and not path.endswith(usual):
                hidden.append(f"{variable}={path}")
    return hidden
