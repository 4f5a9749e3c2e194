"""What a lock records: texts that are read and written by one module."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from builder.core.model import Lock, LockedBase, LockRecord, OsPackage
from builder.lock.record import RecordError, custom_metadata, read_custom

OS_PACKAGES = "builder.os-packages"
HELLO = OsPackage(
    "hello", "1:2.10-3+b1", "amd64", "http://deb.debian.org/debian/pool/h/hello.deb", "ab" * 32, 53_084
)


def written(*packages: OsPackage) -> dict[str, str]:
    return custom_metadata(Lock((), ("linux-64",), record=LockRecord(os_packages=packages)))


def test_round_trip() -> None:
    """Each field has a key, and values of other tools stay."""
    base = LockedBase("debian:bookworm", f"sha256:{'e' * 64}")
    record = LockRecord({"conda": "[]"}, "a", "b", "c", "d", (HELLO,), "e", {"tool": "f"}, "g h")
    custom = custom_metadata(Lock((), (), record=record, base=base))
    assert read_custom(custom) == (record, base, {})
    assert len(custom) == len(fields(LockRecord)) + 2 and list(custom) == sorted(custom)
    assert custom["builder.solved-before"] == "a" and custom["builder.conda"] == "[]"
    assert read_custom({}) == (LockRecord(), None, {}) and custom_metadata(Lock((), ())) == {}


def test_os_packages() -> None:
    """They are in the order of names; none is something else than nothing known."""
    other = OsPackage("adduser", "3.134", "all", HELLO.url, "cd" * 32, 1)
    assert read_custom(written(HELLO, other))[0].os_packages == (other, HELLO)
    assert read_custom(written())[0].os_packages == ()


def test_twice() -> None:
    """Two files of one name would be written over each other."""
    with pytest.raises(RecordError, match="hello_1%3a2.10-3.*amd64.deb appears twice"):
        read_custom(written(HELLO, replace(HELLO, sha256="cd" * 32)))


def test_names() -> None:
    """The file's name is apt's; the purl names the distribution."""
    assert HELLO.filename == "hello_1%3a2.10-3+b1_amd64.deb"
    assert HELLO.purl == "pkg:deb/debian/hello@1%3A2.10-3%2Bb1?arch=amd64"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "../etc"),
        ("url", "http://x y"),
        ("sha256", "AB" * 32),
        ("size", 0),
    ],
)
def test_damaged(key: str, value: Any) -> None:
    """A value that cannot be one is an error that names it."""
    item = json.loads(written(HELLO)[OS_PACKAGES])[0]
    item[key] = value
    with pytest.raises(RecordError, match=f"{OS_PACKAGES} is damaged: {key}"):
        read_custom({OS_PACKAGES: json.dumps([item])})


@pytest.mark.parametrize("text", ["{}x", "[1]", '[{"name": "a"}]'])
def test_not_a_list(text: str) -> None:
    """Any other JSON is an error too."""
    with pytest.raises(RecordError, match="is damaged"):
        read_custom({OS_PACKAGES: text})
