"""The sizes of archives, for ``builder build --dry-run``: from this machine's disk, else from the
servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from builder.fetch.places import Places
from builder.fetch.verify import Verifier
from builder.model import LockedPackage
from builder.net.urlvariables import NO_VARIABLES, UrlVariables
from builder.store.blobs import Store
from builder.workspace import Workspace

if TYPE_CHECKING:
    import httpx


def head_sizes(
    packages: Sequence[LockedPackage],
    work: Workspace,
    *,
    find_links: Sequence[str] = (),
    variables: UrlVariables = NO_VARIABLES,
    jobs: int = 16,
) -> dict[str, int | None]:
    """Return the size of each archive in bytes by package key; None if no location reports it.

    Nothing is downloaded, hashed or made; servers receive HEAD requests only.

    Args:
        packages: the locked packages.
        find_links: folders and pages with wheels.
        variables: those that URLs of the packages may contain.
        jobs: the largest number of requests at the same time.
    """
    places = Places(work.settings, find_links, variables)
    verifier = Verifier(work.store)
    sizes = {p.key: _local_size(p, places, verifier, work.store) for p in packages}
    unknown = {p.key: p for p in packages if sizes[p.key] is None}
    if not unknown or work.settings.offline:
        return sizes
    # slow to import, and a build with nothing changed needs none
    from builder.net.http import make_client

    unreachable: set[str] = set()
    with make_client(jobs) as client, ThreadPoolExecutor(jobs, thread_name_prefix="head") as pool:
        found = pool.map(lambda p: _remote_size(p, places, client, unreachable), unknown.values())
        sizes |= dict(zip(unknown, found, strict=True))
    return sizes


def _local_size(
    package: LockedPackage, places: Places, verifier: Verifier, store: Store
) -> int | None:
    """Return the size of the first local file of the package; its content is not checked."""
    digest = verifier.digest(package)
    in_store = [store.path(digest)] if digest else []
    for place in (*in_store, *places.of(package, None)):
        if isinstance(place, Path):
            with contextlib.suppress(OSError):
                return place.stat().st_size
    return None


def _remote_size(
    package: LockedPackage, places: Places, client: httpx.Client, unreachable: set[str]
) -> int | None:
    """Return the Content-Length of the first URL with the package; note hosts that do not respond."""
    import httpx

    for place in places.of(package, client):
        if isinstance(place, Path) or not place.is_web or place.host in unreachable:
            continue
        try:
            answer = client.head(place.url)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            unreachable.add(place.host)
            continue
        except (httpx.HTTPError, httpx.InvalidURL):
            continue
        length = answer.headers.get("content-length", "")
        if answer.is_success and length.isdecimal():
            return int(length)
    return None
