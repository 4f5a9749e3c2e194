"""pip's own configuration, read as pip reads it, whether or not pip is installed beside builder."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PipConfiguration:
    """What pip's configuration files and PIP_* variables say about where packages come from."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    no_index: bool = False


def pip_configuration(environ: Mapping[str, str] | None = None) -> PipConfiguration:
    """The configuration of ``pip install`` for this user and this Python (pip's documentation, "Configuration").

    Files in rising order: the system's, the user's, the virtual environment's, ``PIP_CONFIG_FILE``; in each, ``[install]`` over
    ``[global]``; then the variables ``PIP_*``.

    Raises:
        ConfigError: a file is not what pip could read.
    """
    env = os.environ if environ is None else environ
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as e:
            raise ConfigError(
                f"{path}: not a pip configuration file: {str(e).splitlines()[0]}", "correct or remove it"
            ) from None
        for name, values in sections.items():
            if parser.has_section(name):
                values |= {key.lower().replace("_", "-"): value for key, value in parser.items(name)}
    merged = sections["global"] | sections["install"]
    merged |= {k[4:].lower().replace("_", "-"): v for k, v in env.items() if k.startswith("PIP_") and v}
    return PipConfiguration(
        merged.get("index-url") or None,
        tuple(merged.get("extra-index-url", "").split()),
        tuple(merged.get("find-links", "").split()),
        merged.get("cert") or None,
        merged.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"),
    )


_SYSTEM = Path("/etc/pip.conf")


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    own = env.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return
    home = Path(env.get("HOME") or Path.home())
    for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder) / "pip" / "pip.conf"
    yield _SYSTEM
    if not (own and Path(own).exists()):
        yield home / ".pip" / "pip.conf"
        yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if own:
        yield Path(own)
