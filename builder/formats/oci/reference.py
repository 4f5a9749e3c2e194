"""Names of images in registries, read by Docker's rules (distribution's reference grammar)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.core.errors import RegistryError
from builder.core.redact import redact

DOCKER_IO = "docker.io"
#: Names of Docker Hub, all of them one registry.
DOCKER_ALIASES = frozenset({DOCKER_IO, "index.docker.io", "registry-1.docker.io"})
MAX_REPOSITORY = 255

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_IPV6 = r"\[[0-9a-fA-F:]+\]"
_DOMAIN = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|{_IPV6})(?::[0-9]+)?")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FORM = "write HOST[:PORT]/REPOSITORY[:TAG]"
#: The rule for tags, for hints.
TAG_RULE = (
    "a tag has up to 128 letters, digits, '_', '.' and '-', and does not start with '.' or '-'"
)


def is_tag(text: str) -> bool:
    """Return whether the distribution-spec allows this tag."""
    return re.fullmatch(TAG, text) is not None


def is_digest(text: str) -> bool:
    """Return whether this is a sha256 digest."""
    return _DIGEST.fullmatch(text) is not None


def local_name(target: str) -> str:
    """Return builder's name of a target's image in the storage of docker or podman."""
    return f"builder/{target}:latest"


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of an image: ``host[:port]/repository[:tag][@digest]``; Docker Hub is ``docker.io``."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def ref(self) -> str:
        """The name to request from the registry: the digest, else the tag, else ``latest``."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return self.name + tag + digest

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference as ``docker pull`` does; it may begin with ``docker://`` or ``oras://``.

        Without a host it is Docker Hub's; a repository of one word there is in ``library/``.

        Raises:
            RegistryError: it breaks a rule, which the message names.
        """
        rest = text.strip().removeprefix("docker://").removeprefix("oras://")
        if "://" in rest:
            problem = f"{_shown(text)!r} is a URL, not an image reference"
            raise RegistryError(problem, "leave out the scheme: HOST[:PORT]/REPOSITORY[:TAG]")
        rest, at, digest = rest.partition("@")
        if at and not is_digest(digest):
            raise RegistryError(
                f"{_shown(text)!r}: after @ must come sha256: and 64 hex digits",
                "write HOST/REPOSITORY@sha256:...; credentials are never part of it (docs/registries.md)",
            )
        rest, tag = _split_tag(rest, text)
        host, path = _split_host(rest)
        if not _DOMAIN.fullmatch(host):
            raise RegistryError(f"{text!r}: {host!r} is not a host name", _FORM)
        host = host.lower()
        if host in DOCKER_ALIASES:
            host = DOCKER_IO
            if path and "/" not in path:
                path = f"library/{path}"
        check_repository(path, text)
        return cls(host, path, tag, digest or None)


def _split_tag(rest: str, text: str) -> tuple[str, str | None]:
    """Return the name and the tag. A colon before the last slash belongs to the port."""
    colon = rest.rfind(":")
    if colon <= rest.rfind("/"):
        return rest, None
    tag = rest[colon + 1 :]
    if not is_tag(tag):
        raise RegistryError(f"{text!r}: {tag!r} is not a tag", TAG_RULE)
    return rest[:colon], tag


def _split_host(rest: str) -> tuple[str, str]:
    """Return host and path; the first part is a host if no repository can have that name."""
    first, slash, path = rest.partition("/")
    is_host = any(c in first for c in ".:[") or first == "localhost" or first != first.lower()
    return (first, path) if slash and is_host else (DOCKER_IO, rest)


def check_repository(path: str, text: str | None = None) -> None:
    """Raise RegistryError unless the distribution-spec allows this repository name.

    Args:
        path: the repository's name.
        text: what the user wrote, for the message.
    """
    shown = text or path
    if not path:
        raise RegistryError(f"{shown!r} names no repository", _FORM)
    if len(path) > MAX_REPOSITORY:
        problem = f"the repository name is longer than {MAX_REPOSITORY} characters"
        raise RegistryError(f"{shown!r}: {problem}", "choose a shorter one")
    for component in path.split("/"):
        if _COMPONENT.fullmatch(component):
            continue
        hint = "repository names are lower-case letters and digits, with '.', '_', '__' or '-' between them"
        if _COMPONENT.fullmatch(component.lower()):
            hint = f"write it in lower case: {path.lower()}"
        raise RegistryError(f"{shown!r}: {component!r} cannot be part of a repository name", hint)


def _shown(text: str) -> str:
    """Return the text without what may be a password before an @."""
    scheme = "" if "://" in text else "docker://"
    return redact(scheme + text).removeprefix(scheme)
