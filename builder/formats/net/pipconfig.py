"""pip's configuration, read as pip reads it. pip itself need not be installed."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.core.errors import ConfigError
from builder.core.settings import home_folder
from builder.core.store.reading import text_of

#: The built-in index of pip and uv.
PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class PipConfiguration:
    """The sources of packages, by pip's configuration files and the ``PIP_*`` variables."""

    index_url: str | None = None
    """The main index; None means pip's built-in one (PyPI)."""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    """Folders and pages with wheels."""
    cert: str | None = None
    """A file with trusted certificates; None means those of the system."""
    no_index: bool = False
    """Whether indexes are ignored: only ``find_links`` are used."""


def pip_configuration(environ: Mapping[str, str] | None = None) -> PipConfiguration:
    """Return the configuration of ``pip install`` for this user and this Python.

    From the weakest to the strongest: the files of the system, of the user, of the virtual
    environment, and ``PIP_CONFIG_FILE``; then the variables ``PIP_*``. Section ``[install]`` is
    stronger than ``[global]``, also across files.

    Raises:
        ConfigError: a file is not a valid configuration file.
    """
    env = os.environ if environ is None else environ
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in _files(env):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text_of(path, "strict"), str(path))
        except (configparser.Error, UnicodeDecodeError) as e:
            problem = f"not a pip configuration file: {str(e).splitlines()[0]}"
            raise ConfigError(f"{path}: {problem}", "correct the file, or remove it") from None
        for name, values in sections.items():
            if parser.has_section(name):
                values |= {_option(key): value for key, value in parser.items(name)}
    merged = sections["global"] | sections["install"]
    merged |= {_option(k[4:]): v for k, v in env.items() if k.startswith("PIP_") and v}
    return PipConfiguration(
        merged.get("index-url") or None,
        tuple(merged.get("extra-index-url", "").split()),
        tuple(merged.get("find-links", "").split()),
        merged.get("cert") or None,
        merged.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"),
    )


def _option(key: str) -> str:
    return key.lower().replace("_", "-")


_SYSTEM = Path("/etc/pip.conf")


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the configuration files that pip reads, also missing ones, the weakest first."""
    own = env.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:  # pip's way to ignore all configuration files
        return
    home = Path(env.get("HOME") or home_folder())
    for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder) / "pip" / "pip.conf"
    yield _SYSTEM
    if not (own and Path(own).exists()):  # pip replaces the user's files by PIP_CONFIG_FILE
        yield home / ".pip" / "pip.conf"
        yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if own:
        yield Path(own)
