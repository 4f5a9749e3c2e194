"""Images and containers that builder leaves in the storage of docker and podman, and their removal.

Each name has the process that made it in it (:mod:`builder.store.temporary`). An image is loaded once per
process and removed when the process ends; those of killed processes are removed by the next run and by
``builder cache prune``.
"""

from __future__ import annotations

import atexit
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from builder.store.temporary import temporary_name, writer_of

#: The repository of loaded images.
REPOSITORY = "builder-run"
_WRITER = re.compile(r"blob-[0-9a-f]{16}-\d+-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class _Loaded:
    image_id: str
    remove: Callable[[], object]


#: By the name of the runner and the digest of the image.
_loaded: dict[tuple[str, str], _Loaded] = {}


def new_tag() -> str:
    """A new tag or container name that names this process."""
    return temporary_name()


def loaded(runner: str, digest: str) -> str | None:
    """The id of an image that this process has loaded into an engine; None if it has not."""
    found = _loaded.get((runner, digest))
    return found.image_id if found else None


def remember(runner: str, digest: str, image_id: str, remove: Callable[[], object]) -> None:
    """Records an image that this process has loaded; ``remove`` is called when the process ends."""
    if not _loaded:
        atexit.register(remove_loaded)
    _loaded[runner, digest] = _Loaded(image_id, remove)


def remove_loaded(runner: str | None = None) -> None:
    """Removes the images that this process has loaded, of one runner or of all."""
    for key in [key for key in _loaded if runner in (None, key[0])]:
        with contextlib.suppress(Exception):  # the engine has ended, or somebody uses or removed the image
            _loaded.pop(key).remove()


def is_left_behind(name: str, *, elsewhere: bool = False) -> bool:
    """Whether a process that was killed has left an image or a container.

    Args:
        name: of the image or container.
        elsewhere: whether a process of another host or container, or before the last boot, which may have
            ended or not, counts as killed. The engine refuses to remove what is in use.
    """
    found = _WRITER.search(name)
    writer = writer_of(found[0]) if found else None
    if writer is None:
        return False
    return not writer.is_running() if writer.is_here() else elsewhere
