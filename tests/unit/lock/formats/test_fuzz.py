"""Lock files of other tools with everything wrong: each ends in a BuilderError, or is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from builder.core.errors import BuilderError
from tests.support.fuzz import Sample, fuzz, mutated
from tests.unit.lock.formats import test_explicit, test_pixi, test_pylock, test_requirements
from tests.unit.lock.formats.support import read

PIXI: Any = yaml.safe_load(test_pixi.FILES_BY_VERSION[6])


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[[str, bytes], None]:
    def run(name: str, data: bytes) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        with contextlib.suppress(BuilderError):
            lock = read(path)
            for package in lock.packages:
                assert package.filename and "/" not in package.filename

    return run


def as_yaml(value: Any) -> bytes:
    try:
        return yaml.safe_dump(value).encode(errors="replace")
    except yaml.YAMLError:
        return b""


@fuzz(60)
@given(mutated(PIXI).map(as_yaml) | Sample(test_pixi.FILES_BY_VERSION[7].encode()).damaged())
@example(b"- " * 100_000)
@example(b"version: 6\nenvironments: " + b"[" * 3000)
def test_pixi_locks(attempt: Callable[[str, bytes], None], data: bytes) -> None:
    attempt("pixi.lock", data)


@fuzz(60)
@given(Sample((test_pylock.LOCK + test_pylock.SOURCES).encode()).damaged())
@example(b'lock-version = "1.0"\ncreated-by = "x"\npackages = ' + b"[" * 3000)
@example(b'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname="a"\nmarker="' + b"(" * 3000 + b'"\n')
def test_pylocks(attempt: Callable[[str, bytes], None], data: bytes) -> None:
    attempt("pylock.toml", data)


@fuzz(30)
@given(
    Sample(test_requirements.COMPILED.encode()).damaged()
    | st.text(max_size=60).map(lambda text: ("a==1\n" + text).encode(errors="ignore"))
)
def test_requirement_lists(attempt: Callable[[str, bytes], None], data: bytes) -> None:
    attempt("requirements.txt", data)


@fuzz(60)
@given(Sample((test_explicit.LIST + test_explicit.WHEELS).encode()).damaged())
def test_explicit_lists(attempt: Callable[[str, bytes], None], data: bytes) -> None:
    attempt("list.txt", data)
