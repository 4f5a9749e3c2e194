"""Work in threads that stops as a whole at the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Stopped(Exception):
    """Raised by work that found its stop flag set: another item failed, or the user pressed Ctrl-C."""


def in_parallel(
    work: Callable[[T], R], items: Iterable[T], workers: int, stop: threading.Event | None = None
) -> list[tuple[T, R]]:
    """Does ``work`` for every item in at most ``workers`` threads.

    The first failure (or Ctrl-C) cancels what has not begun, sets ``stop`` so that running work can end early by
    raising :class:`Stopped`, and is raised.

    Returns:
        The items with their results, in the order of ``items``.
    """
    todo = list(items)
    if not todo:
        return []
    with ThreadPoolExecutor(min(workers, len(todo))) as pool:
        futures: list[Future[R]] = [pool.submit(work, item) for item in todo]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            errors = [e for f in finished if (e := f.exception()) is not None]
            for error in errors:
                if not isinstance(error, Stopped):
                    raise error
            return [(item, f.result()) for item, f in zip(todo, futures, strict=True)]
        except BaseException:
            if stop is not None:
                stop.set()
            for future in futures:
                future.cancel()
            raise
