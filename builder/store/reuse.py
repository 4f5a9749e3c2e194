"""The layers of a published image that a build may use in place of its own.

The image's record says which inputs made which layer (:mod:`builder.publishing.reuse`). Whoever
wrote it decides what the build contains, so nothing that follows from it may reach a build which
does not accept it: records of a build that reuses an image go into a folder of that image's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reuse:
    """A published image and its record."""

    folder: Path
    """Receives the records of builds that reuse the image."""
    origin: str
    """``host/repository``."""
    layers: Mapping[str, str]
    """The diff ids of the layers that the repository has, by their digests."""
    records: Mapping[str, Any]
    """The image's record: records of a cache, by their paths in it."""
