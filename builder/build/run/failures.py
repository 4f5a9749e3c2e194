"""Known failures of runners, with a hint for each.

A message of a container engine names the call that the kernel refused, and rarely the line to type.
:data:`_KNOWN` is the one table of both, for ``builder doctor``, the smoke test and ``builder run``.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.core.settings import user_name
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
    """Return the hint for a failure of a runner: the line to type.

    Args:
        runner: its name.
        text: its message, or the reason why it is not available.

    Returns:
        The hint; empty if the failure is not known.
    """
    for pattern, hint in _KNOWN.get(runner.removesuffix("-hpc"), ()):
        if re.search(pattern, text, re.IGNORECASE):
            return hint() if callable(hint) else hint
    return ""


def namespace_hint() -> str:
    """Return the line that changes the setting of this host that forbids user namespaces."""
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
    """Return the configuration of podman with limits that this user may set."""
    words = []
    # podman 4.3 lowers the limit of processes for itself, and then cannot set its default
    for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        _, hard = resource.getrlimit(kind)
        most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
        words.append(f'"{name}={most}:{most}"')
    limits = f"[containers]\n    default_ulimits = [{', '.join(words)}]"
    return f"write into {_containers_conf()}:\n    {limits}"


def _containers_conf() -> str:
    folder = "/etc" if os.geteuid() == 0 else "~/.config"
    return os.environ.get("CONTAINERS_CONF") or f"{folder}/containers/containers.conf"


def _cgroup_hint() -> str:
    return (
        f"install runc, and write into {_containers_conf()}:\n"
        "    [engine]\n"
        '    cgroup_manager = "cgroupfs"\n'
        '    runtime = "runc"'
    )


def _docker_group_hint() -> str:
    return f"as root: usermod -aG docker {user_name()}; then log in again"


_NO_NAMESPACES = (
    r"new namespaces|user ?namespace|CLONE_NEWUSER|unshare|cannot clone|cannot re-exec|"
    r"root cannot be the user"
)
#: By runner: a pattern of its messages, without case, and the hint; the first that matches counts.
_KNOWN: dict[str, tuple[tuple[str, str | Callable[[], str]], ...]] = {
    "docker": (
        (r"no engine answers.*permission denied", _docker_group_hint),
        (
            r"no engine answers|Cannot connect to the Docker daemon|Connection refused",
            "as root: systemctl start docker; an engine elsewhere: "
            "export DOCKER_HOST=unix:///PATH/docker.sock",
        ),
        (
            r"could not select device driver",
            "as root: install nvidia-container-toolkit, then: nvidia-ctk runtime configure "
            "--runtime=docker && systemctl restart docker",
        ),
    ),
    "podman": (
        (
            r"nvidia\.com/gpu|unresolvable CDI",
            "as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        ),
        (r"rlimit", _ulimits_hint),
        (r"cgroup", _cgroup_hint),
        (
            r"newuidmap|newgidmap|no sub[ug]id ranges|insufficient UIDs|cannot find mappings",
            lambda: f"{ranges_hint()}; then: podman system migrate",
        ),
        (
            r"kernel does not support overlay|fuse-overlayfs|overlay.*not supported",
            'as root: apt-get install fuse-overlayfs; or set driver = "vfs" in storage.conf, '
            "which is slow",
        ),
        (
            r"default OCI runtime .*not found|no OCI runtime",
            "as root: apt-get install crun (or runc)",
        ),
        (_NO_NAMESPACES, namespace_hint),
    ),
    "userns": (
        (
            r"cannot create the mount point",
            "this kernel cannot change an image: mount at a folder that the image has "
            "(--bind SOURCE:/tmp/NAME), or use --no-bind",
        ),
        (_NO_NAMESPACES, namespace_hint),
    ),
    "apptainer": (
        (
            r"/dev/fuse|fusermount|squashfuse",
            "as root: modprobe fuse && chmod 666 /dev/fuse; "
            "and apt-get install squashfuse fuse-overlayfs",
        ),
        (
            r"capabilit",
            "set 'root default capabilities = no' in apptainer.conf, "
            "or run builder as an ordinary user",
        ),
        (
            r"setuid|starter-suid|not owned by root",
            "ask the administrator to install apptainer-suid, or allow user namespaces",
        ),
        (_NO_NAMESPACES, namespace_hint),
    ),
}
