"""OS packages in a lock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from builder.errors import LockError
from builder.lock.ospackages import (
    OS_PACKAGES,
    OsPackage,
    names_of_os_only,
    os_packages,
    os_packages_text,
)
from builder.model import Lock

HELLO = OsPackage(
    "hello", "1:2.10-3+b1", "amd64", "http://deb.debian.org/debian/pool/h/hello.deb", "ab" * 32, 53_084
)


def lock(*packages: OsPackage) -> Lock:
    return Lock((), ("linux-64",), custom={OS_PACKAGES: os_packages_text(packages)})


def test_round_trip() -> None:
    """What is written is read back, in the order of names; a lock without the key says nothing."""
    other = OsPackage("adduser", "3.134", "all", HELLO.url, "cd" * 32, 1)
    assert os_packages(lock(HELLO, other)) == (other, HELLO)
    assert os_packages(lock()) == ()
    assert os_packages(Lock((), ())) is None


def test_twice() -> None:
    """Two files of one name would be written over each other."""
    with pytest.raises(LockError, match="hello_1%3a2.10-3.*amd64.deb appears twice"):
        os_packages(lock(HELLO, replace(HELLO, sha256="cd" * 32)))


def test_names() -> None:
    """The file's name is apt's; the purl names the distribution."""
    assert HELLO.filename == "hello_1%3a2.10-3+b1_amd64.deb"
    assert HELLO.purl == "pkg:deb/debian/hello@1%3A2.10-3%2Bb1?arch=amd64"
    assert names_of_os_only(lock(HELLO), ["hello", "numpy"]) == {"hello"}


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
    item = json.loads(os_packages_text([HELLO]))[0]
    item[key] = value
    with pytest.raises(LockError, match=f"{OS_PACKAGES} is damaged: {key}"):
        os_packages(Lock((), (), custom={OS_PACKAGES: json.dumps([item])}))


@pytest.mark.parametrize("text", ["{}x", "[1]", '[{"name": "a"}]'])
def test_not_a_list(text: str) -> None:
    """Any other JSON is an error too."""
    with pytest.raises(LockError) as caught:
        os_packages(Lock((), (), custom={OS_PACKAGES: text}))
    assert "builder lock" in caught.value.hint
