"""Known failures of runners, and what to do about each.

A message of a container engine says what the kernel refused, and rarely what to type.
:data:`_KNOWN` is the one table of both; ``builder doctor``, the smoke test and ``builder run`` use
it.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.settings import user_name
from builder.store.subordinate import ranges_hint

_SYSCTL = Path("/proc/sys")
#: A limit of files and processes that is enough for any container.
_MOST = 32768
_NO_NAMESPACES = re.compile(
    r"new namespaces|user ?namespace|CLONE_NEWUSER|unshare|cannot clone|cannot re-exec|"
    r"root cannot be the user",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a runner cannot be used."""

    reason: str
    hint: str = ""
    """What to do about it; empty if that is not known."""
    is_installed: bool = True
    """False: there is nothing to repair, the program is not there."""


def hint_for(runner: str, text: str) -> str:
    """Return what to type after a runner failed.

    Args:
        runner: its name.
        text: its message, or the reason why it is not available.

    Returns:
        The hint; empty if the failure is not known.
    """
    for known in _KNOWN:
        if runner in known.runners and known.pattern.search(text):
            return known.hint() if callable(known.hint) else known.hint
    if runner in ("userns", "apptainer", *_PODMAN) and _NO_NAMESPACES.search(text):
        return namespace_hint()
    return ""


def namespace_hint() -> str:
    """Return which setting of this host forbids user namespaces, and the line that allows them."""
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        return "as root: sysctl -w kernel.unprivileged_userns_clone=1"
    if _sysctl("user/max_user_namespaces") == "0":
        return "as root: sysctl -w user.max_user_namespaces=15000"
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "as root (Ubuntu 24.04): sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "start the container around builder with --security-opt seccomp=unconfined"
    return "ask the administrator to allow user namespaces, or use another --runner"


def _sysctl(name: str) -> str:
    try:
        return (_SYSCTL / name).read_text().strip()
    except OSError:
        return ""


def _ulimits_hint() -> str:
    """Return how podman starts with limits that this user may set: only the machine's root may set
    more.
    """
    words = []
    # podman 4.3 lowers the limit of processes for itself, and then cannot set its default
    for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, hard = resource.getrlimit(kind)
        most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        words.append(f'"{name}={most}:{most}"')
    return f"write into {_containers_conf()}:\n    [containers]\n    default_ulimits = [{', '.join(words)}]"


def _containers_conf() -> str:
    named = os.environ.get("CONTAINERS_CONF")
    if named:
        return named
    return (
        "/etc/containers/containers.conf"
        if os.geteuid() == 0
        else "~/.config/containers/containers.conf"
    )


def _cgroup_hint() -> str:
    return (
        f"install runc, and write into {_containers_conf()}:\n"
        "    [engine]\n"
        '    cgroup_manager = "cgroupfs"\n'
        '    runtime = "runc"'
    )


def _ranges_hint() -> str:
    return f"{ranges_hint()}; then: podman system migrate"


def _docker_group_hint() -> str:
    return f"as root: usermod -aG docker {user_name()}; then log in again"


@dataclass(frozen=True, slots=True)
class _Known:
    runners: tuple[str, ...]
    pattern: re.Pattern[str]
    hint: str | Callable[[], str]


def _known(runners: tuple[str, ...], pattern: str, hint: str | Callable[[], str]) -> _Known:
    return _Known(runners, re.compile(pattern, re.IGNORECASE), hint)


_PODMAN = ("podman", "podman-hpc")
_KNOWN = (
    _known(("docker",), r"no engine answers.*permission denied", _docker_group_hint),
    _known(
        ("docker",),
        r"no engine answers|Cannot connect to the Docker daemon|Connection refused",
        "as root: systemctl start docker; an engine elsewhere: export DOCKER_HOST=unix:///PATH/docker.sock",
    ),
    _known(
        ("docker",),
        r"could not select device driver",
        "as root: install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker "
        "&& systemctl restart docker",
    ),
    _known(
        _PODMAN,
        r"nvidia\.com/gpu|unresolvable CDI",
        "as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    _known(_PODMAN, r"rlimit", _ulimits_hint),
    _known(_PODMAN, r"cgroup", _cgroup_hint),
    _known(
        _PODMAN,
        r"newuidmap|newgidmap|no sub[ug]id ranges|insufficient UIDs|cannot find mappings",
        _ranges_hint,
    ),
    _known(
        _PODMAN,
        r"kernel does not support overlay|fuse-overlayfs|overlay.*not supported",
        'as root: apt-get install fuse-overlayfs; or set driver = "vfs" in storage.conf, which is slow',
    ),
    _known(
        _PODMAN,
        r"default OCI runtime .*not found|no OCI runtime",
        "as root: apt-get install crun (or runc)",
    ),
    _known(
        ("userns",),
        r"cannot create the mount point",
        "this kernel cannot change an image: mount at a folder that the image has (--bind SOURCE:/tmp/NAME), "
        "or use --no-bind",
    ),
    _known(
        ("apptainer",),
        r"/dev/fuse|fusermount|squashfuse",
        "as root: modprobe fuse && chmod 666 /dev/fuse; and apt-get install squashfuse fuse-overlayfs",
    ),
    _known(
        ("apptainer",),
        r"capabilit",
        "set 'root default capabilities = no' in apptainer.conf, or run builder as an ordinary user",
    ),
    _known(
        ("apptainer",),
        r"setuid|starter-suid|not owned by root",
        "ask the administrator to install apptainer-suid, or allow user namespaces",
    ),
)
