"""Archives that are fetched when they are needed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import FetchError
from builder.layers.archives import lazy_archives, require_archives
from builder.model import Fetched, LockedPackage


def package(number: int) -> LockedPackage:
    url = f"https://example.org/p{number}-1-py3-none-any.whl"
    return LockedPackage(f"p{number}", "1", "pip", "linux-64", url, f"{number:064}")


class Fetcher:
    """Notes the names of each call."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, packages: list[LockedPackage]) -> list[Fetched]:
        self.calls.append([p.name for p in packages])
        return [Fetched(p, Path(p.filename), 7) for p in packages]


def test_fetched_when_read() -> None:
    fetcher = Fetcher()
    one, two = lazy_archives([package(1), package(2)], fetcher)
    assert (one.package.name, repr(two)) == ("p1", "LazyArchive('p2-1-py3-none-any.whl')")
    assert fetcher.calls == []
    assert (one.path, one.size) == (Path("p1-1-py3-none-any.whl"), 7)
    assert fetcher.calls == [["p1"]]


def test_required_at_once() -> None:
    """What is fetched already is not fetched again; ordinary archives need nothing."""
    fetcher = Fetcher()
    archives = lazy_archives([package(n) for n in range(4)], fetcher)
    assert archives[0].size == 7
    require_archives(archives[:3])
    require_archives(archives[:3])
    require_archives([Fetched(package(9), Path("there"), 1)])
    assert fetcher.calls == [["p0"], ["p1", "p2"]]


def test_threads_fetch_once() -> None:
    fetcher = Fetcher()
    (archive,) = lazy_archives([package(1)], fetcher)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: archive.size, range(64))) == {7}
    assert fetcher.calls == [["p1"]]


def test_a_failed_download_is_tried_again() -> None:
    fetcher = Fetcher()

    def fail_once(packages: list[LockedPackage]) -> list[Fetched]:
        found = fetcher(packages)
        if len(fetcher.calls) == 1:
            raise FetchError("not available")
        return found

    (archive,) = lazy_archives([package(1)], fail_once)
    with pytest.raises(FetchError):
        _ = archive.path
    assert archive.size == 7
