"""The file in which sites store a robot account for a registry: BUILDER_REGISTRY_PROFILE names it.

It holds ``export REGISTRY_USER=... REGISTRY_PASSWORD=...``. It is read, never run: a value is plain
or in quotes, and everything else is refused. ``$`` is an ordinary character, because the names of
Harbor's robot accounts contain one (``robot$project+name``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from builder.errors import RegistryError
from builder.registry.credentials import Credentials, Warn, environment_credentials, ignore
from builder.settings import expand_home

VARIABLE = "BUILDER_REGISTRY_PROFILE"
_NAMES = ("REGISTRY_USER", "REGISTRY_PASSWORD")
#: May be in a profile: the only registry that its credentials are sent to.
_HOST = "REGISTRY_HOST"
#: A name and its value, which ends at a blank: in single quotes, in double quotes, or plain.
_ASSIGNMENT = re.compile(
    r"""([A-Za-z_][A-Za-z0-9_]*)=(?:'([^']*)'|"([^"\\`]*)"|([^\s'"\\`;&|<>()]*))(?=\s|$)"""
)
#: In bytes; a larger file is not a profile.
_MAX_SIZE = 1 << 16
_EXPECTED = "it should contain: export REGISTRY_USER='...' REGISTRY_PASSWORD='...'"


def named_credentials(
    environ: Mapping[str, str] | None = None, warn: Warn = ignore
) -> Credentials | None:
    """Return the user's own credentials for the registry that is published to or pulled from.

    They are in the variables REGISTRY_USER and REGISTRY_PASSWORD, else in the file that
    BUILDER_REGISTRY_PROFILE names. A ``registry.profile`` in the current folder is not read: it
    need not name its registry. REGISTRY_HOST, in the environment or in the file, does: see
    :attr:`~builder.registry.credentials.Credentials.host`.

    Args:
        environ: default: this process's environment.
        warn: receives warnings.

    Raises:
        RegistryError: the file cannot be read or does not set both variables, or only one variable is set.
    """
    env = os.environ if environ is None else environ
    found = environment_credentials(env)
    if found is not None or not env.get(VARIABLE):
        return found
    found = read_profile(expand_home(env[VARIABLE]), warn)
    return found if found.host else replace(found, host=env.get(_HOST, ""))


def read_profile(path: Path, warn: Warn = ignore) -> Credentials:
    """Return the user and password of a profile, and its REGISTRY_HOST.

    Args:
        path: the file.
        warn: receives a warning when other users can read the file.

    Raises:
        RegistryError: it cannot be read, does not set both variables, or holds more than values. The
            message quotes nothing of the file.
    """
    text, mode = _read(path)
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = _assignments(line)
        if found is None:
            raise RegistryError(
                f"{path}:{number}: not NAME=VALUE, and builder does not run profiles",
                f"{_EXPECTED}; or run the file in your shell, which sets the variables",
            )
        values |= found
    missing = [name for name in _NAMES if not values.get(name)]
    if missing:
        raise RegistryError(f"{path} does not set {' and '.join(missing)}", _EXPECTED)
    if mode & 0o077:
        warn(f"{path} contains a password and other users can read it: chmod 600 {path}")
    user, password = (values[name] for name in _NAMES)
    return Credentials(user, password, source=str(path), host=values.get(_HOST, ""))


def _read(path: Path) -> tuple[str, int]:
    """Return the file's text and mode."""
    try:
        with path.open("rb") as f:
            mode = os.fstat(f.fileno()).st_mode
            data = f.read(_MAX_SIZE + 1)
    except OSError as e:
        message = f"cannot read the registry profile {path}: {e.strerror}"
        raise RegistryError(message, f"correct {VARIABLE}, or let this user read it") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(data) > _MAX_SIZE:
        raise RegistryError(f"{path} is not a text file", _EXPECTED)
    return text, mode


def _assignments(line: str) -> dict[str, str] | None:
    """Return the values of a line; None if it holds anything that a shell would compute or run."""
    rest = re.sub(r"^\s*(export\s+)?", "", line).strip()
    values: dict[str, str] = {}
    while rest and not rest.startswith("#"):
        match = _ASSIGNMENT.match(rest)
        if match is None:
            return None
        name, literal, quoted, plain = match.groups(default="")
        if "${" in quoted + plain or "$(" in quoted:
            return None
        values[name] = literal + quoted + plain
        rest = rest[match.end() :].lstrip()
    return values
