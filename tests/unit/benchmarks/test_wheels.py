"""The wheels of the benchmark: their lists, their download and their server."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from benchmarks.wheels import UPDATED, batches, byte_range, requirements, served, with_update


@pytest.mark.parametrize(("name", "count"), [("small", 10), ("torch", 142), ("cuda", 70)])
def test_lists(name: str, count: int) -> None:
    """Every list has exact versions, and the package that is updated."""
    wanted = requirements(name)
    assert len(wanted) == count
    assert all(line.count("==") == 1 for line in wanted)
    assert set(with_update(wanted)) - set(wanted) == {UPDATED}


def test_two_versions() -> None:
    """pip refuses two versions of a package in one command, and torch may have another index."""
    assert batches(["a==1", "torch==2.0+cpu", "b==1", "a==2", "c==1"]) == [
        ["a==1", "b==1", "c==1"],
        ["torch==2.0+cpu"],
        ["a==2"],
    ]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (("2", "4"), (2, 4)),
        (("", "3"), (7, 9)),
        (("5", "50"), (5, 9)),
    ],
)
def test_ranges(numbers: tuple[str, str], expected: tuple[int, int]) -> None:
    assert byte_range(*numbers, 10) == expected


def test_served(tmp_path: Path) -> None:
    """The server answers whole files, ranges and a listing, and counts what it sends."""
    (tmp_path / "a-1.whl").write_bytes(b"0123456789")
    with served(tmp_path) as server:
        url = server.url
        whole = urllib.request.urlopen(f"{url}a-1.whl")
        assert (whole.read(), "max-age" in whole.headers["Cache-Control"]) == (b"0123456789", True)
        ranged = urllib.request.urlopen(
            urllib.request.Request(f"{url}a-1.whl", headers={"Range": "bytes=-4"})
        )
        assert (ranged.status, ranged.read()) == (206, b"6789")
        assert server.sent() == 14
        assert b'href="a-1.whl"' in urllib.request.urlopen(url).read()
