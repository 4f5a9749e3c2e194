"""The public archives of Debian and Ubuntu, with their mirrors and snapshots.

A lock names the public address of a package. A machine without that address has a mirror in apt's
settings. Archives drop a package when a newer version arrives; the snapshot services of Debian and
Ubuntu keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from builder.core.datafiles import table
from builder.core.redact import without_userinfo

from .apt import host_id, host_sources, uris_of
from .mirrors import moved

_ARCHIVES = "debarchives.yaml"


def host_mirrors(
    folder: Path = Path("/etc/apt"), os_release: Path = Path("/etc/os-release")
) -> tuple[tuple[str, str], ...]:
    """Return pairs of public addresses and of those that this machine's apt sources name instead.

    Empty if the sources name public addresses themselves. The second of a pair may contain
    credentials.
    """
    system, suite = host_id(os_release)
    if not suite:
        return ()
    pairs = []
    sources = list(host_sources(folder))
    for archive in table(__file__, _ARCHIVES).get(system, ()):
        wanted = {suite + suffix for suffix in archive["suites"]}
        found = [s for s in sources if wanted & set(s.get("Suites", "").split())]
        uris = [uri.rstrip("/") for uri in uris_of(found)]
        own = next((uri for uri in uris if uri.startswith(("http://", "https://", "file:"))), "")
        if own and not is_public(own):
            pairs += [(address, own) for address in archive["addresses"]]
    return tuple(pairs)


def is_public(uri: str) -> bool:
    """Return whether an address is that of a public archive of Debian or Ubuntu."""
    return any(uri.rstrip("/") in archive["addresses"] for archive in _all())


def mirrored_archive(uri: str, mirrors: tuple[tuple[str, str], ...]) -> str:
    """Return the address on this machine's mirror of an archive, or of a file in it."""
    return moved(uri, mirrors) or uri


def public_archive(url: str, mirrors: tuple[tuple[str, str], ...]) -> str:
    """Return the public address of a file on this machine's mirror, without credentials."""
    bare = without_userinfo(url)
    back = ((without_userinfo(own), public) for public, own in mirrors)
    return moved(bare, back) or bare


def snapshot(url: str, time: int) -> str | None:
    """Return the address of an archive's file at a time in seconds; None for other archives."""
    text = datetime.fromtimestamp(time, UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = [archive for archive in _all() if "snapshot" in archive]
    pairs = ((a, old["snapshot"].format(time=text)) for old in kept for a in old["addresses"])
    return moved(url, pairs)


def _all() -> Iterator[Mapping[str, Any]]:
    return chain.from_iterable(table(__file__, _ARCHIVES).values())
