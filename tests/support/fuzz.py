"""Fuzz tests: damaged input ends in a BuilderError of one line, or is accepted; nothing else is raised.

A short part runs always, with the same cases each time. HYPOTHESIS_PROFILE=soak runs many new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from builder.core.errors import BuilderError

#: Values of the wrong type, and values that are wrong in other ways.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 63, 1 << 200, 1.5, 1e300),
    *("", "x", "\0", "a/../../b", "\x1b[2J", "9" * 400, "sha256:" + "0" * 64, "sha512:" + "0" * 128),
    *([], {}, [None], [[]], [0], {"": None}, {"digest": 1}, [{}], {"a": {"b": {"c": []}}}),
)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Settings of a fuzz test.

    Args:
        examples: how many cases run always.
    """
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    if os.environ.get("HYPOTHESIS_PROFILE") == "soak":
        return settings(settings.get_profile("soak"), suppress_health_check=quiet)
    return settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=quiet
    )


@contextmanager
def only_builder_errors() -> Iterator[None]:
    """Accepts a BuilderError, if its message is one line without control characters."""
    try:
        yield
    except BuilderError as e:
        assert e.message.isprintable() and e.hint.isprintable(), e
        assert len(str(e)) < 4000, e


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value, its own first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from nodes(child, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A JSON value with another value at a path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one or two strange values in it, with a key less or more."""
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(nodes(value))))
        value = replaced(value, path, draw(st.sampled_from(STRANGE)))
    return value


class Sample:
    """Undamaged bytes.

    Args:
        data: the bytes.
        places: the positions of the bytes that may be changed; None: all.
    """

    def __init__(self, data: bytes, places: Iterable[int] | None = None) -> None:
        self.data = data
        self._places = list(range(len(data)) if places is None else places)

    def damaged(self) -> st.SearchStrategy[bytes]:
        """The bytes with some of them changed, and sometimes cut short."""
        place = st.integers(0, len(self._places) - 1).map(self._places.__getitem__)
        numbers = st.sampled_from(
            [b"\0", b"\1", b"\x7f", b"\xff", bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\x7f"]
        )
        changes = st.lists(
            st.tuples(place, st.binary(min_size=1, max_size=8) | numbers), min_size=1, max_size=3
        )
        length = st.just(len(self.data)) | st.integers(0, len(self.data))
        return st.builds(self._changed, changes, length)

    def _changed(self, changes: list[tuple[int, bytes]], length: int) -> bytes:
        data = bytearray(self.data)
        for at, new in changes:
            data[at : at + len(new)] = new
        return bytes(data[:length])
