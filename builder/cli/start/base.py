"""The base image of a project that names neither a base nor a site."""

from __future__ import annotations

import platform

from builder.build.bases.mmdebstrap import mmdebstrap_mode
from builder.core.errors import ImageError
from builder.core.settings import Settings
from builder.formats.net.http import probe
from builder.formats.net.mirrors import mirrored_base

#: An image that every machine can download, without a tool and without root.
DOCKER_BASE = "docker://docker.io/library/debian:bookworm-slim"
#: The same system, made of packages from the Debian mirror of this machine.
DEBIAN_BASE = "debian:bookworm"
_HUB = "https://registry-1.docker.io/v2/"


def usual_base(settings: Settings) -> tuple[str, str]:
    """Return a base for this machine, and the reason for it (for a message; empty if usual).

    It is :data:`DOCKER_BASE`, because a recipe is shared, and that image needs no tool and no root.
    It is :data:`DEBIAN_BASE` if the registry does not answer and this machine can make that base.
    """
    problem = ""
    if settings.offline:
        problem = "offline"
    elif mirrored_base(settings, DOCKER_BASE) == DOCKER_BASE:
        problem = probe(_HUB, refused=1000)  # any answer will do, also HTTP 401
    if problem and can_make_debian():
        return DEBIAN_BASE, f"Docker Hub does not answer ({problem})"
    return DOCKER_BASE, ""


def can_make_debian() -> bool:
    """Return whether this user can make a ``debian:SUITE`` base on this machine."""
    try:
        return bool(mmdebstrap_mode(DEBIAN_BASE))
    except ImageError:
        return False


def this_platform() -> str:
    """Return the platform of this machine if it is not the usual one; else empty."""
    return "linux-aarch64" if platform.machine() in ("aarch64", "arm64") else ""
