"""Work in several threads that stops at the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TypeVar

from .progress import Reporter, working

T = TypeVar("T")
R = TypeVar("R")
#: Receives an amount that was done.
Advance = Callable[[int], None]


class Stopped(Exception):
    """Raised by a worker whose stop flag is set: another item failed, or Ctrl-C was pressed."""


def in_parallel(
    work: Callable[[T], R], items: Iterable[T], workers: int, stop: threading.Event | None = None
) -> list[tuple[T, R]]:
    """Call ``work`` for every item in at most ``workers`` threads.

    The first failure (or Ctrl-C) cancels the items that have not started, sets ``stop``, and is
    raised again. This thread waits for a queue written in C. ``concurrent.futures`` takes a lock
    for each item, and Ctrl-C may leave it held: then the threads wait for it forever.

    Args:
        work: the function; it may check ``stop`` and end early with :class:`Stopped`.
        items: the arguments of the calls.
        workers: the largest number of threads.
        stop: the flag that a failure sets; None if ``work`` never checks one.

    Returns:
        The items with their results, in the order of ``items``.
    """
    todo = list(items)
    numbers = iter(range(len(todo)))  # in C: each number goes to one thread
    results: dict[int, R] = {}
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        for number in numbers:
            failure: BaseException | None = None
            try:
                results[number] = work(todo[number])
            except BaseException as e:
                failure = e
            ended.put(failure)

    count = max(1, min(workers, len(todo)))
    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for _ in todo:
            failure = ended.get()
            if not isinstance(failure, Stopped | None):
                raise failure
        if len(results) < len(todo):
            raise Stopped
        return [(item, results[number]) for number, item in enumerate(todo)]
    except BaseException:
        list(numbers)  # no thread takes another one
        if stop is not None:
            stop.set()
        raise
    finally:
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()


def run_task(
    work: Callable[[T, Advance], R],
    items: Iterable[T],
    workers: int,
    reporter: Reporter,
    task: str,
    size: Callable[[T], int],
) -> list[tuple[T, R]]:
    """Call ``work`` for every item as :func:`in_parallel` does, and report how far the task is.

    The largest item is the first: no thread begins it when the others have nothing left to do.

    Args:
        work: the function; it gets an item, and what it calls with each amount that it has done.
            After a failure of another item that raises :class:`Stopped`.
        items: the items.
        workers: the largest number of threads.
        reporter: receives the progress.
        task: its name there.
        size: returns the sum of an item's amounts.

    Returns:
        The items with their results.
    """
    stop = threading.Event()

    def advance(amount: int) -> None:
        if stop.is_set():
            raise Stopped
        reporter.advance(task, amount)

    largest_first = sorted(items, key=size, reverse=True)
    with working(reporter, task, sum(map(size, largest_first))):
        return in_parallel(lambda item: work(item, advance), largest_first, workers, stop)
