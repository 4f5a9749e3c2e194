"""An image's config (image-spec, config.md)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from builder.oci.documents import Name, Sha256, Shape, Text

#: The PATH of a container whose image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_architecture() -> str:
    """Return the OCI's name of this machine's processor; for rarer ones, the kernel's name."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def config_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that an image config sets."""
    entries = (config.get("config") or {}).get("Env") or ()
    pairs = (text.partition("=") for text in entries)
    return {name: value for name, _, value in pairs if name}


class _RuntimeShape(Shape):
    """``config``: how a container of the image runs."""

    User: Text | None = None
    Env: list[Text] | None = None
    Entrypoint: list[Text] | None = None
    Cmd: list[Text] | None = None
    WorkingDir: Text | None = None
    StopSignal: Text | None = None
    Labels: dict[str, str] | None = None
    ExposedPorts: dict[str, Any] | None = None
    Volumes: dict[str, Any] | None = None


class _HistoryShape(Shape):
    created: Text | None = None
    created_by: str | None = None
    empty_layer: bool | None = None


class RuntimeConfigShape(Shape):
    """The keys of a config that an image needs to run."""

    architecture: Name | None = None
    os: Name | None = None
    variant: Name | None = None
    created: Text | None = None
    config: _RuntimeShape | None = None
    history: list[_HistoryShape] | None = None


class _RootfsShape(Shape):
    diff_ids: list[Sha256]


class ConfigShape(RuntimeConfigShape):
    """The config of an image with layers."""

    rootfs: _RootfsShape
