"""The base image of a project that names neither a base nor a site."""

from __future__ import annotations

import platform

import httpx

from builder.bases.mmdebstrap import mmdebstrap_mode
from builder.errors import ImageError
from builder.net.http import tls_context, why_silent
from builder.net.mirrors import mirrored_base
from builder.settings import Settings

#: An image that every machine can download, without a tool and without root.
DOCKER_BASE = "docker://docker.io/library/debian:bookworm-slim"
#: The same system, made of packages from the Debian mirror of this machine.
DEBIAN_BASE = "debian:bookworm"
_HUB = "https://registry-1.docker.io/v2/"
#: Seconds within which Docker Hub has to answer.
_PROBE_TIMEOUT = 5.0


def usual_base(settings: Settings) -> tuple[str, str]:
    """A base for this machine, and why it is this one (for a message; empty for the usual one).

    It is :data:`DOCKER_BASE`, because a recipe is shared, and that image needs no tool and no root.
    :data:`DEBIAN_BASE` takes its place when the registry does not answer, and this machine can make it.
    """
    problem = _hub_problem(settings)
    if problem and can_make_debian():
        return DEBIAN_BASE, f"Docker Hub does not answer ({problem})"
    return DOCKER_BASE, ""


def can_make_debian() -> bool:
    """Whether this user can make a ``debian:SUITE`` base on this machine."""
    try:
        return bool(mmdebstrap_mode(DEBIAN_BASE))
    except ImageError:
        return False


def _hub_problem(settings: Settings) -> str:
    """Why Docker Hub does not answer; empty if it does, or if a mirror takes its place."""
    if mirrored_base(settings, DOCKER_BASE) != DOCKER_BASE:
        return ""
    if settings.offline:
        return "offline"
    try:
        httpx.head(_HUB, timeout=_PROBE_TIMEOUT, verify=tls_context())  # any answer will do, also HTTP 401
    except (httpx.HTTPError, UnicodeError) as e:
        return why_silent(e)
    return ""


def this_platform() -> str:
    """The platform of this machine, where it is not the usual one; else empty."""
    return "linux-aarch64" if platform.machine() in ("aarch64", "arm64") else ""
