"""The content of an environment file, the same for all formats of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.core.model import LockedSource, SourceKind
from builder.core.redact import redact


@dataclass(frozen=True, slots=True)
class Spec:
    """One requirement of an environment file."""

    text: str
    """As written, with single spaces and without comment."""
    name: str
    """The package's name: conda's in lower case, pip's normalised (PEP 503)."""
    where: str
    """``FILE:LINE``."""
    hashes: tuple[str, ...] = ()
    """``ALGORITHM:HEX`` of each ``--hash``: the locked file has one of them. Empty: any."""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A requirement of a pip section that names a source, from which a wheel has to be built."""

    kind: SourceKind
    name: str | None
    """Normalised (PEP 503); None: not known before the wheel is built (``-e .``)."""
    url: str
    """Without ``git+`` and revision; as written otherwise, so it may contain credentials and
    ``$VARIABLES``. That of a folder or file of the project is its path, as in
    :class:`builder.core.model.LockedSource`."""
    revision: str = ""
    """Branch, tag or commit of a git repository; empty: its default branch."""
    subdirectory: str = ""
    """The folder of the package in the archive or repository; empty: the topmost one."""
    extras: tuple[str, ...] = ()
    """Sorted."""
    marker: str = ""
    """An environment marker (PEP 508); empty: always."""
    editable: bool = False
    sha256: str = ""
    """Of the archive, where the requirement names it: 64 lower-case hex digits."""
    where: str = ""
    """``FILE:LINE``."""
    text: str = ""
    """As written, with single spaces and without comment; may contain credentials."""

    @property
    def shown(self) -> str:
        """The requirement in one form, without credentials: for messages and for the lock.

        The text cannot be redacted: a password may end at any ``@``, also at the one before a
            revision.
        """
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        url = f"git+{self.url}" if self.kind == "git" else self.url
        if "://" not in url and url != ".":
            url = f"./{url}"
        values = {"subdirectory": self.subdirectory, "sha256": self.sha256}
        fragment = "&".join(f"{key}={value}" for key, value in values.items() if value)
        text = redact(url)
        text += f"@{self.revision}" if self.revision else ""
        text += f"#{fragment}" if fragment else ""
        text = f"{self.name}{extras} @ {text}" if self.name else text + extras
        return f"{text} ; {self.marker}" if self.marker else text


def spec_of(name: str, locked: LockedSource) -> SourceSpec:
    """Return the requirement that :func:`builder.build.sources.open_source` opens for a locked
    source."""
    origin = (locked.url, locked.commit, locked.subdirectory)
    return SourceSpec(
        locked.kind, name, *origin, sha256=locked.sha256, text=f"{name} @ {locked.url}"
    )


@dataclass(frozen=True, slots=True)
class IndexPin:
    """The index that alone may have a package of the pip section."""

    name: str
    """Of the package, normalised (PEP 503)."""
    url: str
    """Without its last slash; may contain ``$VARIABLES``."""
    marker: str = ""
    """An environment marker (PEP 508); empty: always."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment file for one platform."""

    path: Path
    name: str = ""
    """``name:`` of the file; may be empty."""
    channels: tuple[str, ...] = ()
    """Highest priority first, without ``nodefaults``."""
    conda: tuple[Spec, ...] = ()
    pip: tuple[Spec, ...] = ()
    index_url: str | None = None
    """``--index-url`` of the pip section; None means pip's own."""
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    """URLs, or folders as written, relative to the folder of the environment file."""
    sources: tuple[SourceSpec, ...] = ()
    """The entries of the pip section that have to be built first; not in ``pip``."""
    constraints: tuple[Spec, ...] = ()
    """The entries of files that the pip section names with ``-c``."""
    no_binary: tuple[str, ...] = ()
    """Normalised names of packages whose wheels are built from their sdists; or ``:all:``."""
    only_binary: tuple[str, ...] = ()
    """Names of packages that are never built, or ``:all:``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Names and values of ``variables:``, which conda sets when it activates the environment."""

    pins: tuple[IndexPin, ...] = ()
    limits: tuple[Spec, ...] = ()
    """Conda specs of packages that are not asked for: their versions if others need them."""
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    """Names and versions of the virtual packages that the file declares."""
    exclude_newer: str = ""
    """A date or time, see :func:`builder.lock.inputs.cutoff`: for conda and pip packages."""
    uv: Mapping[str, Any] = field(default_factory=dict)
    """Settings of uv, as its configuration file has them."""

    @property
    def takes_first_index(self) -> bool:
        """Whether a package is from the first index that has it, as in uv; else from any."""
        return bool(self.uv.get("index-strategy") == "first-index")

    @property
    def lists_packages(self) -> bool:
        """True if the file lists a package besides Python, pip and sources."""
        return bool(self.pip) or any(spec.name not in ("python", "pip") for spec in self.conda)

    @property
    def requested(self) -> frozenset[str]:
        """The names of all packages that the file lists."""
        names = {spec.name for spec in (*self.conda, *self.pip)}
        return frozenset(names | {source.name for source in self.sources if source.name})
