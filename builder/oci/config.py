"""An image's config (image-spec, config.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The PATH of a container whose image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def config_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that an image config sets."""
    entries = (config.get("config") or {}).get("Env") or ()
    pairs = (text.partition("=") for text in entries)
    return {name: value for name, _, value in pairs if name}
