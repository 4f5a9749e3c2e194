"""The solved packages of a lock while its base is made.

A ``debian:`` base takes a minute, and may fail where the packages have a solution. So they are written first,
beside the lock file: ``NAME.lock.yml.unfinished``. No command takes a file of that name for a lock. The next
``builder lock`` or ``build`` continues from it if it asks for the same packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from builder.errors import BuilderError, LockError
from builder.lock.file import read_lock, write_lock
from builder.lock.inputs import stale_reasons
from builder.lock.request import LockRequest
from builder.model import Lock

#: Key of the metadata: what was asked for in addition to the recipe and its environment.
_ASKED = "builder.asked"


class Unfinished:
    """What a request needs of the file, and leaves in it; nothing where only the base changes, or is known.

    Args:
        request: what to lock.
        path: the lock file.
        solver: makes the lock.
    """

    def __init__(self, request: LockRequest, path: Path, solver: str) -> None:
        self._request = request
        self._file = path.with_name(f"{path.name}.unfinished")
        self._is_used = request.base is None and request.previous is None
        self._asked = {_ASKED: f"{solver} {request.exclude_newer}"}

    def read(self) -> Lock | None:
        """Returns the lock, without its base, that an earlier command solved; None if there is none."""
        recipe, settings = self._request.recipe, self._request.settings
        if not self._is_used:
            return None
        try:
            lock = read_lock(self._file)
        except LockError:  # there is none, or it is damaged
            return None
        if lock.custom.get(_ASKED) != self._asked[_ASKED] or stale_reasons(recipe, lock, settings):
            return None
        self._request.reporter.note(f"{recipe.name}: continuing from {self._file}; remove it to solve again")
        return replace(lock, custom={key: text for key, text in lock.custom.items() if key != _ASKED})

    @contextmanager
    def stored(self, lock: Lock) -> Iterator[None]:
        """Stores solved packages until the end of the context, and longer if the context fails."""
        if self._is_used:
            write_lock(replace(lock, custom={**lock.custom, **self._asked}), self._file)
        try:
            yield
        except BuilderError as e:
            if self._is_used:
                kept = f"{self._file} has the solved packages, and builder lock continues from it"
                e.hint = f"{e.hint}; {kept}" if e.hint else kept
            raise
        self._file.unlink(missing_ok=True)
