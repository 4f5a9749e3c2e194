"""``debian:SUITE`` bases: a minimal Debian as an image of one layer.

The bytes are the same on every host, as root and as an ordinary user.

The packages come from the Debian mirror of this machine: its apt sources, with their keyrings,
proxies and credentials, none of which is left in the image. The image does not contain ``/dev``,
logs, caches, package lists and backup files. As Debian's own slim images, it contains no
documentation (except copyright files), no manual pages and no translations.

A base is made once. A record in the cache names its manifest and the state of the mirror at that
time. The base is made again when the mirror has changed, unless the lock pins one that is in the
cache.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from builder.core.errors import ConfigError, ImageError
from builder.core.model import canonical_json
from builder.core.store.blobs import Store
from builder.core.store.records import Record
from builder.core.workspace import Workspace
from builder.lock.config.recipe import Recipe

from .image import WantedBase, stored_base

log = logging.getLogger(__name__)

#: Part of the cache keys of bases. Increase it when a change here results in other bytes for the same
#: packages.
FORMAT = 1
#: Debian packages of every base, in addition to those of mmdebstrap's variant minbase.
ALWAYS = ("ca-certificates",)
_SUITE = re.compile(r"[a-z][a-z0-9.-]*")
#: Releases that people name by their number, as registries do.
_NUMBERED = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+~:-]+)?")


def debian_base(
    reference: str, wanted: Recipe | WantedBase, work: Workspace, pinned: str | None = None
) -> str:
    """Return the digest of the manifest of a ``debian:SUITE`` base, which is then in the store.

    Args:
        reference: ``debian:bookworm``.
        wanted: its processor, by the name that the OCI and Debian share; and the Debian packages in
            addition to minbase and :data:`ALWAYS`.
        pinned: the digest that the lock names. None: use the mirror's current packages.

    Raises:
        ConfigError: the suite or a package has an impossible name.
        ImageError: mmdebstrap is missing or fails, this user cannot run it, this machine has no
            Debian mirror, or the mirror has changed so that the pinned base cannot be made again.
    """
    suite = check_suite(reference)
    check_packages(wanted.base_packages)
    if pinned and _is_stored(pinned, work.store):
        return pinned

    # imported here: a base that is in the cache needs none of them
    from builder.formats.net.apt import apt_sources

    from .debian_mirror import mirror_state
    from .mmdebstrap import DebianBase, make_debian_base

    include = tuple(sorted({*ALWAYS, *wanted.base_packages}))
    record = Record(_record(suite, wanted.architecture, include, work), dict[str, str])
    with work.store.lock(f"base {record.path.name}"):
        digest, state_then = _made_before(record, work.store)
        if work.settings.offline:
            return _offline(reference, digest, pinned)
        sources = apt_sources(suite)
        state = mirror_state(sources, work.settings)
        if digest and state is None:
            problem = "the Debian mirror does not answer"
            work.reporter.warn(f"{problem}; using the {reference} base made before")
        elif not digest or state != state_then:
            log.info("%s: %s", reference, "the mirror changed" if digest else "made the first time")
            base = DebianBase(reference, suite, include, wanted.architecture, sources)
            digest = make_debian_base(base, work)
            record.write({"digest": digest, "state": state or ""})
    _check_pinned(reference, pinned, digest)
    return digest


def _made_before(record: Record[dict[str, str]], store: Store) -> tuple[str, str]:
    """Return the base in the cache, and the mirror's state at that time; empty if there is none."""
    known = record.read()
    if known is None or not _is_stored(known["digest"], store):
        return "", ""
    return known["digest"], known["state"]


def _check_pinned(reference: str, pinned: str | None, digest: str) -> None:
    if pinned not in (None, digest):
        raise ImageError(
            f"the lock pins {reference} as {pinned}, but the packages of this machine's Debian mirror "
            f"have changed and result in {digest} now",
            "pin the new one: builder lock --update-base; "
            "or use the pinned base from an image that contains it (oci: or docker://)",
        )


def check_suite(reference: str) -> str:
    """Return the suite of a reference. Raises ConfigError if it is none."""
    suite = reference.removeprefix("debian:")
    name = _NUMBERED.get(suite.split(".")[0], "")
    if _SUITE.fullmatch(suite) and not suite.endswith("-slim") and suite != "latest":
        return suite
    hint = f"write the suite's name: debian:{name or 'bookworm'}"
    if not name and _SUITE.fullmatch(suite):
        hint += f"; the image of that name in a registry is docker://docker.io/library/{reference}"
    raise ConfigError(f"base {reference!r}: not a Debian suite", hint)


def check_packages(packages: Sequence[str]) -> None:
    """Raise ConfigError if a text cannot be the name of a Debian package."""
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            words = ", ".join(package.replace(",", " ").split())
            hint = f"write base_packages: [{words.lower()}]"
            raise ConfigError(f"{package!r} is not the name of a Debian package", hint)


def _record(suite: str, architecture: str, include: Sequence[str], work: Workspace) -> Path:
    key = canonical_json([FORMAT, suite, include, architecture, work.settings.epoch])
    value = hashlib.sha256(key).hexdigest()[:16]
    return work.store.folders.bases / f"debian-{suite}-{architecture}-{value}.json"


def _offline(reference: str, known: str, pinned: str | None) -> str:
    """Return the digest of the base in the cache, if it is the pinned one."""
    if known and pinned in (None, known):
        return known
    which = f"{reference} ({pinned})" if pinned else reference
    hint = "build once online, or use a base from oci: or docker://"
    raise ImageError(f"the base {which} is not in the cache, and this build is offline", hint)


def _is_stored(digest: str, store: Store) -> bool:
    """Return whether an image is in the store, or its layers are in one that is reused."""
    # an image that is reused brings the documents of its base
    if store.get(digest) is None and (store.reuse is None or store.get(digest) is None):
        return False
    try:
        layers = stored_base("", digest, store).layers
    except ImageError:
        return False
    return all(layer.path or layer.origin for layer in layers)
