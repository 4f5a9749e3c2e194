"""Documents of the OCI: bounds, one meaning only, strict shapes, and files that are not ordinary."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.formats.oci.documents import (
    MAX_DOCUMENT,
    MAX_JSON_DEPTH,
    check_size,
    load_json,
    read_document,
)


def refused(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        load_json(data, "the tags of host/repo")
    assert caught.value.message.startswith("the tags of host/repo")
    assert caught.value.message.isprintable() and caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 200_000, "nested more than 64 levels"),
        (b'{"a":' * 200_000, "nested more than 64 levels"),
        (b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1), "nested more than 64 levels"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"x": {"\x1b[2J": 1, "\x1b[2J": 2}}', "is not JSON"),
        (b'{"x": {"\\u001b": 1, "\\u001b": 2}}', r"the key '\x1b' occurs twice"),
        (b"{%s}" % b",".join(b'"%d":0' % min(n, 200_000) for n in range(200_002)), "'200000' occurs twice"),
        (b"NaN", "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"1e999", "a number is too large"),
        (b"1" * 5000, "is not JSON"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'"\xff"', "is not JSON"),
        ("[1]".encode("utf-16"), "is not JSON"),
        (b"\xef\xbb\xbf[1]", "is not JSON"),
        (b"", "is not JSON"),
    ],
)
def test_not_json(data: bytes, message: str) -> None:
    """JSON that another reader could understand differently, or not read at all, is refused in one line."""
    assert message in refused(data)


def test_json() -> None:
    """Ordinary JSON is read, also as deep as it may be."""
    value = {"a": [1, 2.5, None, True, "\u00e9\U0001f600"], "b": {"a": {}}}
    assert load_json(json.dumps(value).encode(), "x") == value
    deep = load_json(b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH, "x")
    assert isinstance(deep, list)


def test_size_of_a_document() -> None:
    """A document over the limit is not parsed, and its descriptor is refused before it is fetched."""
    assert load_json(b'"' + b"a" * (MAX_DOCUMENT - 2) + b'"', "x")
    assert "too large: 8.4 MB, at most 8.4 MB" in refused(b'"' + b"a" * MAX_DOCUMENT + b'"')
    check_size(MAX_DOCUMENT, "the config of x")
    with pytest.raises(ImageError, match=r"the config of x is too large: 2\.0 GB, at most 8\.4 MB"):
        check_size(2_000_000_000, "the config of x")


def test_files_that_are_not_ordinary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes, devices, links, sockets and folders are not opened; nothing waits for a writer."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "outside").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 characters
        server.bind("socket")
    for name in ("pipe", "socket", "."):
        with pytest.raises(ImageError, match="is not an ordinary file"):
            read_document(tmp_path / name)
    for name in ("link", "zero"):
        with pytest.raises(ImageError, match="is a symbolic link") as caught:
            read_document(tmp_path / name)
        assert "cp -rL" in caught.value.hint
    with pytest.raises(ImageError, match="not an ordinary file"):
        read_document(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "missing")
