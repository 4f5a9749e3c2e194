"""Known failures of runners, with a hint for each.

A message of a container engine names the call that the kernel refused, and rarely the line to type.
hints.yaml is the one table of both, for ``builder doctor``, the smoke test and ``builder run``.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from builder.core.datafiles import search, table
from builder.core.settings import user_name
from builder.core.store.reading import text_of
from builder.core.store.subordinate import ranges_hint

_SYSCTL = Path("/proc/sys")
#: A limit of files and processes that is enough for any container.
_MOST = 32768


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a runner cannot be used."""

    reason: str
    hint: str = ""
    """What to do about it; empty if that is not known."""
    is_installed: bool = True
    """False: there is nothing to repair, the program is not there."""


def hint_for(runner: str, text: str) -> str:
    """Return the hint for a failure of a runner or engine: the line to type.

    Args:
        runner: its name; for an engine with ``build`` after it: ``cotainr build``.
        text: its message, or the reason why it is not available.

    Returns:
        The hint; empty if the failure is not known.
    """
    for known in table(__file__, "hints.yaml").get(runner.removesuffix("-hpc"), ()):
        if search(known["pattern"], text, re.IGNORECASE):
            return re.sub(r"\{(\w+)\}", lambda fact: _FACTS[fact[1]](), known["hint"])
    return ""


def namespace_hint() -> str:
    """Return the line that changes the setting of this host that forbids user namespaces."""
    for row in table(__file__, "namespaces.yaml"):
        if text_of(_SYSCTL / row["name"]).strip() == row["value"]:
            return str(row["hint"])
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "start the container around builder with --security-opt seccomp=unconfined"
    return "ask the administrator to allow user namespaces, or see builder doctor"


def _containers_conf() -> str:
    """Return the configuration file of podman."""
    folder = "/etc" if os.geteuid() == 0 else "~/.config"
    return os.environ.get("CONTAINERS_CONF") or f"{folder}/containers/containers.conf"


def _ulimits() -> str:
    """Return limits that this user may set, as podman's configuration has them."""
    words = []
    # podman 4.3 lowers the limit of processes for itself, and then cannot set its default
    for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, hard = resource.getrlimit(kind)
        most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        words.append(f'"{name}={most}:{most}"')
    return ", ".join(words)


#: What a hint in hints.yaml may name in braces, found out when it is needed.
_FACTS = {
    "user": user_name,
    "ranges": ranges_hint,
    "namespaces": namespace_hint,
    "containers_conf": _containers_conf,
    "ulimits": _ulimits,
}
