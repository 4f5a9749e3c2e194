"""Who we are to a registry: where credentials come from, and the Basic and Bearer schemes of distribution's token authentication.

Secrets live in fields that are left out of ``repr`` and go into HTTP headers and token requests only; messages name the *source*.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from builder.errors import RegistryError
from builder.oci.reference import DOCKER_ALIASES

Warn = Callable[[str], None]

#: Docker Hub's name in auth files and to credential helpers.
DOCKER_KEY = "https://index.docker.io/v1/"
HELPER_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and password, or an identity token. ``source`` says where they came from, for messages."""

    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    source: str = "none"

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)

    @property
    def basic(self) -> str:
        """The value of a Basic ``Authorization`` header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


ANONYMOUS = Credentials()


def environment_credentials(environ: Mapping[str, str] | None = None) -> Credentials | None:
    """Those of REGISTRY_USER and REGISTRY_PASSWORD, taken literally; None when neither is set.

    They belong to the registry that the user named, never to another one.

    Raises:
        RegistryError: only one of the two is set.
    """
    env = os.environ if environ is None else environ
    user, password = env.get("REGISTRY_USER", ""), env.get("REGISTRY_PASSWORD", "")
    if not user and not password:
        return None
    if not user or not password:
        there, missing = (
            ("REGISTRY_USER", "REGISTRY_PASSWORD") if user else ("REGISTRY_PASSWORD", "REGISTRY_USER")
        )
        raise RegistryError(f"{there} is set but {missing} is not", f"set {missing} too, or unset {there}")
    return Credentials(user, password, source="REGISTRY_USER and REGISTRY_PASSWORD")


def find_credentials(
    host: str, repository: str = "", environ: Mapping[str, str] | None = None, warn: Warn | None = None
) -> Credentials:
    """The credentials that podman's or Docker's files hold for a registry; ANONYMOUS when there are none.

    In this order: ``REGISTRY_AUTH_FILE`` (alone, when it is set), ``$XDG_RUNTIME_DIR/containers/auth.json``,
    ``~/.config/containers/auth.json``, ``config.json`` in ``DOCKER_CONFIG`` or ``~/.docker``. In each: ``credHelpers``,
    ``credsStore``, ``auths`` (the longest key that holds the repository wins, as in containers-auth.json(5)).

    Raises:
        RegistryError: a file is not what it should be.
    """
    env = os.environ if environ is None else environ
    tell = warn or (lambda message: None)
    for path in auth_files(env):
        found = _from_file(path, host, repository, env, tell)
        if found is not None:
            return found
    return ANONYMOUS


def auth_files(env: Mapping[str, str]) -> Iterator[Path]:
    """The auth files that are there, in the order they are asked."""
    home = Path(env.get("HOME") or Path.home())
    if named := env.get("REGISTRY_AUTH_FILE"):
        if not Path(named).exists():
            raise RegistryError(
                f"REGISTRY_AUTH_FILE names {named}, which does not exist",
                "log in first (podman login), or unset it",
            )
        yield Path(named)
        return
    runtime = env.get("XDG_RUNTIME_DIR")
    candidates = [
        *([Path(runtime) / "containers/auth.json"] if runtime else []),
        Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json",
        Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
    ]
    yield from (path for path in candidates if path.is_file())


def _from_file(
    path: Path, host: str, repository: str, env: Mapping[str, str], warn: Warn
) -> Credentials | None:
    try:
        data = json.loads(path.read_bytes() or b"{}")
        mode = path.stat().st_mode
    except OSError as e:
        raise RegistryError(
            f"cannot read {path}: {e.strerror}", "let this user read it, or log in again"
        ) from None
    except ValueError:  # the parser's message would quote the file
        raise RegistryError(
            f"{path} is not JSON", "log in again (docker login or podman login), or correct the file"
        ) from None
    auths = data.get("auths") or {} if isinstance(data, dict) else None
    if not isinstance(auths, dict):
        raise RegistryError(
            f"{path} is not an auth file of docker or podman",
            'it should look like {"auths": {"HOST": {"auth": "..."}}}',
        )
    if mode & 0o077 and any(
        isinstance(v, dict) and (v.get("auth") or v.get("identitytoken")) for v in auths.values()
    ):
        warn(f"{path} holds passwords and can be read by others: chmod 600 {path}")
    names = set(_keys(host, ""))
    helpers = data.get("credHelpers") or {}
    helper = next((str(h) for key, h in helpers.items() if _normal(key) in names), None) or data.get(
        "credsStore"
    )
    if helper and (found := _from_helper(str(helper), host, path, env, warn)):
        return found
    entries = {_normal(key): (key, value) for key, value in auths.items()}
    for wanted in _keys(host, repository):
        key, entry = entries.get(wanted, ("", None))
        if isinstance(entry, dict) and (found := _from_entry(entry, f"{path} ({key})")):
            return found
    return None


def _keys(host: str, repository: str) -> Iterator[str]:
    parts = repository.split("/") if repository else []
    for name in [host] if host not in DOCKER_ALIASES else sorted(DOCKER_ALIASES):
        for n in range(len(parts), 0, -1):
            yield "/".join([name, *parts[:n]])
    yield from [host] if host not in DOCKER_ALIASES else sorted(DOCKER_ALIASES)


def _normal(key: str) -> str:
    name = re.sub(r"^https?://", "", key).rstrip("/")
    return re.sub(r"/v[12]$", "", name)


def _from_entry(entry: Mapping[str, Any], source: str) -> Credentials | None:
    user, password, token = (str(entry.get(k) or "") for k in ("username", "password", "identitytoken"))
    if entry.get("auth"):
        try:
            user, colon, password = (
                base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
            )
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise RegistryError(
                f"{source}: 'auth' is not USER:PASSWORD in base64",
                "log in again (docker login or podman login)",
            ) from None
        password = password.rstrip("\0")
    return Credentials(user, password, token, source) if user or token else None


def _from_helper(
    helper: str, host: str, path: Path, env: Mapping[str, str], warn: Warn
) -> Credentials | None:
    program = f"docker-credential-{helper}"
    key = DOCKER_KEY if host in DOCKER_ALIASES else host
    try:
        done = subprocess.run(
            [program, "get"],
            input=key.encode(),
            capture_output=True,
            timeout=HELPER_TIMEOUT_S,
            env=dict(env),
            check=False,
        )
    except FileNotFoundError:
        warn(f"{path} names the credential helper {program}, which is not on PATH; going on without it")
        return None
    except (OSError, subprocess.TimeoutExpired) as e:
        why = (
            "did not answer in time"
            if isinstance(e, subprocess.TimeoutExpired)
            else f"cannot be run: {e.strerror}"
        )
        warn(f"{program} (named in {path}) {why}; going on without it")
        return None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        if "credentials not found" not in said.lower():
            warn(f"{program} (named in {path}) failed for {host}: {said[:200]}")
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        warn(f"{program} (named in {path}) did not answer as a credential helper should")
        return None
    source = f"{program} ({path})"
    if user == "<token>":
        return Credentials(identity_token=secret, source=source)
    return Credentials(user, secret, source=source) if user else None


# schemes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a ``WWW-Authenticate`` header (RFC 9110, 11.6.1). ``scheme`` is in lower case."""

    scheme: str
    params: Mapping[str, str]


_PIECE = re.compile(r'([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))|([A-Za-z][A-Za-z0-9-]*)')


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """The challenges of all ``WWW-Authenticate`` headers of an answer; several may share a header."""
    found: list[tuple[str, dict[str, str]]] = []
    for header in headers:
        for match in _PIECE.finditer(header):
            key, quoted, plain, scheme = match.groups()
            if scheme:
                found.append((scheme.lower(), {}))
            elif found:
                found[-1][1][key.lower()] = plain if plain is not None else re.sub(r"\\(.)", r"\1", quoted)
    return [Challenge(scheme, params) for scheme, params in found]


Scopes = frozenset[str]


class Authenticator:
    """Answers a registry's challenges and remembers tokens, one for each set of scopes. Safe for threads.

    Args:
        host: the registry, for messages.
        http: makes token requests.
        send: sends them, again when the server is busy.
        credentials: gives those for a repository; called at the first challenge only.
        secure: whether the registry is spoken to over TLS; then passwords go to https token servers only.
    """

    def __init__(
        self,
        host: str,
        http: httpx.Client,
        send: Callable[[httpx.Request], httpx.Response],
        credentials: Callable[[str], Credentials],
        *,
        secure: Callable[[], bool],
    ) -> None:
        self._host = host
        self._http = http
        self._send = send
        self._find = credentials
        self._secure = secure
        self._lock = threading.RLock()
        self._challenge: Challenge | None = None
        self._tokens: dict[Scopes, tuple[str, float]] = {}
        self.used = ANONYMOUS
        """The credentials that were used last, for messages."""

    def header(self, scopes: Scopes, repository: str) -> str | None:
        """The ``Authorization`` header for a request, None while the registry has not asked for one.

        Raises:
            RegistryError: the token server refused, or cannot be reached.
        """
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                self.used = self._find(repository)
                return self.used.basic if self.used.username else None
            token, expires = self._tokens.get(scopes, ("", 0.0))
            if time.monotonic() >= expires:
                token, expires = self._fetch(self._challenge, scopes, repository)
                self._tokens[scopes] = token, expires
            return f"Bearer {token}"

    def answer(self, headers: Iterable[str], scopes: Scopes, repository: str, sent: str | None) -> bool:
        """Takes note of the challenge of a 401; whether trying again can help. ``sent`` is the header that was refused."""
        challenges = {c.scheme: c for c in parse_challenges(headers)}
        challenge = challenges.get("bearer") or challenges.get("basic")
        if challenge is None or (challenge.scheme == "bearer" and not challenge.params.get("realm")):
            return False
        with self._lock:
            self._challenge = challenge
            if challenge.scheme == "basic":
                self.used = self._find(repository)
                return sent is None and bool(self.used.username)
            if sent is not None and self._tokens.get(scopes, ("",))[0] == sent.removeprefix("Bearer "):
                del self._tokens[scopes]
            return True

    def _fetch(self, challenge: Challenge, scopes: Scopes, repository: str) -> tuple[str, float]:
        self.used = credentials = self._find(repository)
        try:
            url = httpx.URL(challenge.params["realm"])
        except httpx.InvalidURL:
            raise RegistryError(
                f"the token server that {self._host} names is no URL", "is this the address of a registry?"
            ) from None
        where = f"the token server {url.host} of {self._host}"
        if credentials and self._secure() and url.scheme != "https":
            raise RegistryError(
                f"{where} does not use https, so it gets no password",
                "ask the registry's owner to correct its realm",
            )
        fields: list[tuple[str, str | int | float | bool | None]] = []
        if challenge.params.get("service"):
            fields.append(("service", challenge.params["service"]))
        wanted = sorted(scopes) or ([challenge.params["scope"]] if challenge.params.get("scope") else [])
        started = time.monotonic()
        try:
            if credentials.identity_token:
                form = {
                    "service": challenge.params.get("service", ""),
                    "client_id": "builder",
                    "grant_type": "refresh_token",
                    "scope": " ".join(wanted),
                }
                request = self._http.build_request(
                    "POST", url, data={**form, "refresh_token": credentials.identity_token}
                )
            else:
                headers = {"Authorization": credentials.basic} if credentials else {}
                query = url.copy_merge_params([*fields, *(("scope", s) for s in wanted)])
                request = self._http.build_request("GET", query, headers=headers)
            response = self._send(request)
        except httpx.HTTPError as e:
            raise RegistryError(
                f"cannot reach {where}: {type(e).__name__}", "check the network and proxy settings"
            ) from None
        if response.status_code != 200:
            raise RegistryError(
                f"{where} refused: {response.status_code} {response.reason_phrase}",
                (
                    f"the credentials of {credentials.source} were used: "
                    if credentials
                    else f"no credentials for {self._host} were found: "
                )
                + "log in (docker login, podman login), or set REGISTRY_USER and REGISTRY_PASSWORD",
            )
        try:
            data = response.json()
            token = str(data.get("token") or data.get("access_token") or "")
            lifetime = float(data.get("expires_in") or 60)
        except (ValueError, AttributeError, TypeError):
            token, lifetime = "", 0.0
        if not token:
            raise RegistryError(
                f"{where} answered without a token", "this is a fault of the registry; try again later"
            )
        # renewed before it ends: an upload of minutes shall not be refused at its last byte
        return token, started + max(lifetime * 0.75 - 5, lifetime * 0.25)
