"""Credentials for registries: from variables, auth files of podman and Docker, and helpers.

Secrets are in fields that ``repr`` leaves out. They are sent in HTTP headers and token requests
only; messages name their *source*.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.errors import RegistryError
from builder.core.settings import home_folder
from builder.core.store.reading import Reader
from builder.formats.net.answers import load_json
from builder.formats.oci.reference import DOCKER_ALIASES

log = logging.getLogger(__name__)

Warn = Callable[[str], None]

#: Docker Hub's name in auth files and for credential helpers.
DOCKER_KEY = "https://index.docker.io/v1/"
HELPER_TIMEOUT_S = 60
#: Bytes of an auth file.
_MAX_BYTES = 1 << 20
#: The folder of podman and skopeo for users without XDG_RUNTIME_DIR; root's in most cases.
RUN = Path("/run/containers")
#: Where podman 4.3 makes a folder for an ordinary user without XDG_RUNTIME_DIR (``su``, cron).
PODMAN = Path("/tmp")  # noqa: S108 - only a folder that this user owns is read
LOGIN_AGAIN = "log in again (docker login or podman login)"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password, or an identity token."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    """An OAuth2 refresh token (Azure's registries); used instead of the password."""
    source: str = "none"
    """Where they come from, for messages."""
    host: str = ""
    """The only registry that they are sent to, as ``host[:port]``; empty: the one that is published
    to or pulled from, whatever its name."""

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)

    @property
    def basic(self) -> str:
        """The value of a Basic ``Authorization`` header (RFC 7617)."""
        pair = f"{self.username}:{self.password}".encode(errors="surrogateescape")
        return "Basic " + base64.b64encode(pair).decode()


ANONYMOUS = Credentials()


def environment_credentials() -> Credentials | None:
    """Return the credentials in REGISTRY_USER and REGISTRY_PASSWORD; None when neither is set.

    They are sent to the registry that is published to or pulled from, which a recipe may name; with
    REGISTRY_HOST to that registry only. They are never sent to the registry of a base image.

    Raises:
        RegistryError: only one of the two is set.
    """
    names = ("REGISTRY_USER", "REGISTRY_PASSWORD")
    missing = [name for name in names if not os.environ.get(name)]
    if len(missing) == len(names):
        return None
    if missing:
        (present,) = (name for name in names if name not in missing)
        message = f"{present} is set but {missing[0]} is not"
        raise RegistryError(message, f"set {missing[0]} too, or unset {present}")
    user, password = (os.environ[name] for name in names)
    host = os.environ.get("REGISTRY_HOST", "")
    return Credentials(user, password, source=" and ".join(names), host=host)


def are_for(credentials: Credentials, host: str) -> bool:
    """Return whether credentials may be sent to a registry; see :attr:`Credentials.host`."""
    names = DOCKER_ALIASES if host in DOCKER_ALIASES else {host.lower()}
    return not credentials.host or credentials.host.strip().lower() in names


def ignore(message: str) -> None:
    """Drop a warning."""


def find_credentials(host: str, repository: str = "", warn: Warn = ignore) -> Credentials:
    """Return the credentials in the auth files of podman and Docker; ANONYMOUS if there are none.

    The files are searched in the order of :func:`auth_places`. In each file: ``credHelpers``,
    ``credsStore``, ``auths``; the longest key that contains the repository counts, as in
    containers-auth.json(5).

    Args:
        host: ``host[:port]``.
        repository: in that registry.
        warn: receives warnings.

    Raises:
        RegistryError: a file cannot be read or is damaged.
    """
    for file in auth_files(warn):
        found = file.find(host, repository)
        if found is not None:
            log.info("credentials for %s: %s", host, found.source)
            return found
    return ANONYMOUS


def auth_places() -> list[Path]:
    """Return where auth files may be, in the order in which they are searched.

    ``REGISTRY_AUTH_FILE`` alone when it is set; else the places of podman, skopeo and docker, as
    skopeo 1.22 reads them (containers/image, pkg/docker/config).

    Raises:
        RegistryError: REGISTRY_AUTH_FILE names a file that does not exist.
    """
    env = os.environ
    named = env.get("REGISTRY_AUTH_FILE")
    if named:
        if not Path(named).exists():
            message = f"REGISTRY_AUTH_FILE names {named}, which does not exist"
            raise RegistryError(message, "log in first (podman login), or unset REGISTRY_AUTH_FILE")
        return [Path(named)]
    home = Path(env.get("HOME") or home_folder())
    runtime, uid = env.get("XDG_RUNTIME_DIR"), os.getuid()
    fallback = PODMAN / f"podman-run-{uid}"
    is_own = not runtime and fallback.is_dir() and fallback.lstat().st_uid == uid
    return [
        Path(runtime, "containers/auth.json") if runtime else RUN / f"{uid}/auth.json",
        *([fallback / "containers/auth.json"] if is_own else []),
        Path(env.get("XDG_CONFIG_HOME") or home / ".config", "containers/auth.json"),
        Path(env.get("DOCKER_CONFIG") or home / ".docker", "config.json"),
        home / ".dockercfg",
    ]


def auth_files(warn: Warn = ignore) -> Iterator[AuthFile]:
    """Yield the files that exist at :func:`auth_places`.

    Only root may look into podman's folder.

    Raises:
        RegistryError: see :func:`auth_places`; or a file cannot be read or is damaged.
    """
    for place in auth_places():
        if os.environ.get("REGISTRY_AUTH_FILE") or (os.access(place, os.F_OK) and place.is_file()):
            yield AuthFile(place, warn)


class AuthFile:
    """One ``auth.json``, ``config.json`` or ``.dockercfg``.

    Args:
        path: the file.
        warn: receives warnings.
    """

    def __init__(self, path: Path, warn: Warn) -> None:
        self.path = path
        self._warn = warn
        data = self._read()
        self._auths = data if path.name == ".dockercfg" else data.get("auths") or {}
        self._helpers = data.get("credHelpers") or {}
        self._store = str(data.get("credsStore") or "")
        if not isinstance(self._auths, dict) or not isinstance(self._helpers, dict):
            raise self._wrong_format()
        self._warn_if_readable()

    def find(self, host: str, repository: str) -> Credentials | None:
        """Return the credentials for a repository; None when the file has none."""
        helper = self._helper_of(host)
        found = _ask_helper(helper, host, self.path, self._warn) if helper else None
        if found:
            return found
        entries = {_normal(key): (key, value) for key, value in self._auths.items()}
        entries |= {key: (key, value) for key, value in self._auths.items()}  # as written first
        for wanted in _keys(host, repository):
            key, entry = entries.get(wanted, ("", None))
            if isinstance(entry, dict):
                found = _credentials_of(entry, f"{self.path} ({key})")
                if found:
                    return found
        return None

    def hosts(self) -> list[str]:
        """Return the names of the hosts that it lists."""
        entries = [key for key, entry in self._auths.items() if entry or self._store]
        return sorted({_normal(key).partition("/")[0] for key in (*entries, *self._helpers)})

    def _read(self) -> dict[str, Any]:
        hint = "let this user read it, or log in again"
        raw = Reader(RegistryError, hint, _MAX_BYTES, pipes=True).read(self.path, hint)
        try:
            data = load_json(raw or b"{}")
        except ValueError:  # the parser's message would quote the file
            hint = f"{LOGIN_AGAIN}, or correct the file"
            raise RegistryError(f"{self.path} is not JSON", hint) from None
        if not isinstance(data, dict):
            raise self._wrong_format()
        return data

    def _wrong_format(self) -> RegistryError:
        message = f"{self.path} is not an auth file of docker or podman"
        return RegistryError(message, 'it should look like {"auths": {"HOST": {"auth": "..."}}}')

    def _warn_if_readable(self) -> None:
        entries = [v for v in self._auths.values() if isinstance(v, dict)]
        has_secrets = any(v.get("auth") or v.get("identitytoken") for v in entries)
        if has_secrets and self.path.stat().st_mode & 0o077:
            path = self.path
            self._warn(f"{path} contains passwords and other users can read it: chmod 600 {path}")

    def _helper_of(self, host: str) -> str:
        names = set(_keys(host, ""))
        found = (
            str(helper or "") for key, helper in self._helpers.items() if _normal(key) in names
        )
        return next(found, self._store)


def _keys(host: str, repository: str) -> Iterator[str]:
    """Yield the keys under which credentials for a repository may be listed, the longest first.

    ``quay.io/org/name``, ``quay.io/org``, ``quay.io``; for Docker Hub with each of its names.
    """
    names = sorted(DOCKER_ALIASES) if host in DOCKER_ALIASES else [host]
    parts = repository.split("/") if repository else []
    for name in names:
        for n in range(len(parts), 0, -1):
            yield "/".join([name, *parts[:n]])
    yield from names


def _normal(key: str) -> str:
    """Return a key without scheme and API version; old Docker clients wrote https://HOST/v1/.

    The path of a URL is dropped, as docker and skopeo do: only ``HOST/PATH`` is for a repository.
    """
    return re.sub(r"^https?://([^/]*).*|(/v[12])?/?$", r"\1", key)


def _credentials_of(entry: Mapping[str, Any], source: str) -> Credentials | None:
    names = ("username", "password", "identitytoken")
    user, password, token = (str(entry.get(name) or "") for name in names)
    if entry.get("auth"):
        user, password = _decode(str(entry["auth"]), source)
    return Credentials(user, password, token, source) if user or token else None


def _decode(auth: str, source: str) -> tuple[str, str]:
    """Return the user and the password of an ``auth`` value.

    Programs in Go skip line breaks. Docker CLI before 1.10 padded the password with zero bytes.
    """
    try:
        data = base64.b64decode("".join(auth.split()), validate=True)
        user, colon, password = data.decode(errors="surrogateescape").partition(":")
    except binascii.Error:
        colon = ""
    if not colon:
        message = f"{source}: 'auth' is not USER:PASSWORD in base64"
        raise RegistryError(message, LOGIN_AGAIN) from None
    return user, password.rstrip("\0")


def _ask_helper(helper: str, host: str, path: Path, warn: Warn) -> Credentials | None:
    """Return the output of ``docker-credential-HELPER get``; None with a warning if it fails."""
    program = f"docker-credential-{helper}"
    key = (DOCKER_KEY if host in DOCKER_ALIASES else host).encode()
    try:
        command = [program, "get"]
        done = subprocess.run(command, input=key, capture_output=True, timeout=HELPER_TIMEOUT_S)
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        is_late = isinstance(e, subprocess.TimeoutExpired)
        reason = f"no answer in {HELPER_TIMEOUT_S} s" if is_late else getattr(e, "strerror", e)
        warn(f"the credential helper {program} (named in {path}): {reason}; continuing without it")
        return None
    if done.returncode != 0:
        message = (done.stdout + done.stderr).decode(errors="replace").strip()
        if '"secret"' in message.lower():
            message = "what it printed may be a secret"
        if "credentials not found" not in message.lower():
            warn(f"{program} (named in {path}) failed for {host}: {message[:200]}")
        return None
    try:
        # in any case, and null is empty, as in Go
        answer = {key.lower(): str(value or "") for key, value in load_json(done.stdout).items()}
        user, secret = answer["username"], answer["secret"]
    except (ValueError, KeyError, AttributeError):
        warn(f"{program} (named in {path}) did not print the JSON of a credential helper")
        return None
    source = f"{program} ({path})"
    if user == "<token>":  # the credential-helper protocol's mark for an identity token
        return Credentials(identity_token=secret, source=source)
    return Credentials(user, secret, source=source) if user else None
