"""An image's config (image-spec, config.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The PATH of a container whose image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def config_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables of an image config."""
    pairs = (text.partition("=") for text in (config.get("config") or {}).get("Env") or ())
    return {name: value for name, _, value in pairs if name}
