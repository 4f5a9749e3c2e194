"""Work in several threads that stops at the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Stopped(Exception):
    """Raised by a worker whose stop flag is set: another item failed, or Ctrl-C was pressed."""


def in_parallel(
    work: Callable[[T], R], items: Iterable[T], workers: int, stop: threading.Event | None = None
) -> list[tuple[T, R]]:
    """Call ``work`` for every item in at most ``workers`` threads.

    The first failure (or Ctrl-C) cancels the items that have not started, sets ``stop``, and is
    raised again.

    Args:
        work: the function; it may check ``stop`` and end early with :class:`Stopped`.
        items: the arguments of the calls.
        workers: the largest number of threads.
        stop: the flag that a failure sets; None if ``work`` never checks one.

    Returns:
        The items with their results, in the order of ``items``.
    """
    todo = list(items)
    if not todo:
        return []
    failures: list[BaseException] = []

    def attempt(item: T) -> R:
        try:
            return work(item)
        except BaseException as e:
            if not isinstance(e, Stopped):
                failures.append(e)
            raise

    with ThreadPoolExecutor(min(workers, len(todo))) as pool:
        futures: list[Future[R]] = []
        try:
            futures.extend(pool.submit(attempt, item) for item in todo)
            wait(futures, return_when=FIRST_EXCEPTION)
            if failures:
                raise failures[0]
            return [(item, f.result()) for item, f in zip(todo, futures, strict=True)]
        except BaseException:
            if stop is not None:
                stop.set()
            for future in futures:
                future.cancel()
            raise
