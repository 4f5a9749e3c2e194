"""Wheels with every trick of the zip format: a one-line error, or a layer inside the prefix."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.formats.layers import bounds
from builder.formats.layers.wheel import wheel_entries, wheel_index
from tests.support import wheels
from tests.support.hostile import (
    CONTEXT,
    WHEELS,
    Hostile,
    Raw,
    assert_handled,
    wheel_of,
)


@pytest.mark.parametrize("case", WHEELS, ids=lambda case: case.name)
def test_wheel(case: Hostile, tmp_path: Path) -> None:
    """The wheel is refused by name in one line, or all its files lie inside the prefix."""
    assert_handled(case, tmp_path, most=1000)


def refused(tmp_path: Path, message: str, *members: Raw, **info: bytes) -> None:
    """Asserts that a wheel is refused, also by its index alone."""
    path = wheel_of(*members, info={name.replace("_txt", ".txt"): data for name, data in info.items()})(
        tmp_path, "demo"
    )
    package = wheels.fetched(path)
    for read in (wheel_index, lambda f, c: list(wheel_entries(f, c))):
        with pytest.raises(LayerError, match=message):
            read(package, CONTEXT)


def test_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More members than the bound, or a larger central directory, are refused before they are listed."""
    monkeypatch.setattr(bounds, "MAX_MEMBERS", 100)
    refused(tmp_path, "104 members; at most 100 are allowed", *(Raw(b"%d" % i) for i in range(100)))
    monkeypatch.setattr(bounds, "MAX_DIRECTORY", 4000)
    refused(tmp_path, "at most 4000 are allowed", *(Raw(b"%d" % i) for i in range(100)))


def test_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that unpacks to many times its size is refused, by the declared sizes alone."""
    monkeypatch.setattr(bounds, "RATIO_FROM", 1 << 20)
    refused(tmp_path, "it unpacks to .* are allowed for its size", Raw(b"a", bytes(2 << 20), method=8))
    monkeypatch.setattr(bounds, "MAX_RATIO", 2000)
    monkeypatch.setattr(bounds, "MAX_UNPACKED", 1 << 20)
    refused(tmp_path, "at most 1048576 are allowed", Raw(b"a", bytes(2 << 20), method=8))


def test_large_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RECORD over its bound is refused before it is read."""
    monkeypatch.setattr(bounds, "MAX_LISTING", 1000)
    path = wheel_of(info={"RECORD": b"a,,\n" * 999})(tmp_path, "demo")
    with pytest.raises(LayerError, match="RECORD' has 3996 bytes; at most 1000 are allowed"):
        list(wheel_entries(wheels.fetched(path), CONTEXT))


def test_large_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that are rewritten have a bound together."""
    monkeypatch.setattr(bounds, "MAX_SCRIPTS", 1000)
    script = b"#!python\n" + b"#" * 600
    refused(
        tmp_path, "its scripts have more than", *(Raw(b"@-1.0.data/scripts/%d" % i, script) for i in (1, 2))
    )


def test_memory(tmp_path: Path) -> None:
    """A member that RECORD does not list is hashed in chunks."""
    path = wheel_of(Raw(b"zeros", bytes(64 << 20), method=8))(tmp_path, "demo")
    package = wheels.fetched(path)
    tracemalloc.start()
    try:
        entries = list(wheel_entries(package, CONTEXT))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert any(e.size == 64 << 20 for e in entries) and peak < 16 << 20
