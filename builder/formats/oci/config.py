"""An image's config (image-spec, config.md)."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import Any

#: The PATH of a container whose image sets none.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that serve the programs of a base image alone: they refer to its activated environment,
#: or Python reads them and then imports the base's modules instead of the image's.
SERVES_BASE = re.compile(
    r"CONDA_(?:PREFIX(?:_\d+)?|DEFAULT_ENV|SHLVL|PROMPT_MODIFIER|EXE|PYTHON_EXE)|_CE_(?:CONDA|M)"
    r"|PYTHON(?:PATH|HOME|USERBASE|STARTUP|PLATLIBDIR|PYCACHEPREFIX)|VIRTUAL_ENV(?:_PROMPT)?"
)
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
