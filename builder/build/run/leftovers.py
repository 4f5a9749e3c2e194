"""Images and containers that builder leaves in the storage of docker and podman, and their removal.

Each name names the process that made it (:func:`builder.core.store.temporary.temporary_name`). An
image is loaded once per process and removed when the process ends; those of killed processes are
removed by the next run.
"""

from __future__ import annotations

import atexit
import contextlib
import re
from collections.abc import Callable

from builder.core.store.temporary import has_ended

#: The repository of loaded images.
REPOSITORY = "builder-run"
_WRITER = re.compile(r"blob-[0-9a-f]{16}-\d+-[0-9a-f]{16}")


#: Id and removal of each image, by the name of the runner and the digest of the image.
_loaded: dict[tuple[str, str], tuple[str, Callable[[], object]]] = {}


def loaded(runner: str, digest: str) -> str | None:
    """Return the id of an image that this process has loaded into an engine; None if it has not."""
    found = _loaded.get((runner, digest))
    return found[0] if found else None


def remember(runner: str, digest: str, image_id: str, remove: Callable[[], object]) -> None:
    """Record an image that this process has loaded; ``remove`` is called when the process ends."""
    if not _loaded:
        atexit.register(remove_loaded)
    _loaded[runner, digest] = (image_id, remove)


def remove_loaded(runner: str | None = None) -> None:
    """Remove the images that this process has loaded, of one runner or of all."""
    for key in [key for key in _loaded if runner in (None, key[0])]:
        # The engine may have ended, and somebody may use or have removed the image.
        with contextlib.suppress(Exception):
            _loaded.pop(key)[1]()


def is_left_behind(name: str) -> bool:
    """Return whether a process of this host that was killed has left an image or a container."""
    found = _WRITER.search(name)
    return found is not None and has_ended(found[0])
