"""What servers answer in JSON or HTML, read within bounds: the bytes as they were sent."""

from __future__ import annotations

import json
from typing import Any

import httpx2

#: Bytes of an answer. The largest page of PyPI, that of ddtrace with 47,000 files, has 21 MB.
MAX_PAGE = 64 << 20
#: Commas and brackets of an answer in JSON: each may be a value, which takes some 100 bytes of memory.
#: That page has 520,000.
MAX_VALUES = 2_000_000


def read_body(answer: httpx2.Response, most: int, *, decode: bool = False) -> bytes:
    """Return the body of an answer.

    Args:
        answer: the answer.
        most: bytes that it may have.
        decode: undo a ``Content-Encoding``, which :func:`.http.make_client` does not ask for.

    Raises:
        ValueError: it is too large, or encoded.
        httpx2.TransportError: the connection broke, or is too slow.
    """
    encoding = answer.headers.get("Content-Encoding", "identity")
    if not decode and encoding.lower() != "identity":
        raise ValueError(f"its Content-Encoding is {encoding[:40]!r}, which was not asked for")
    body = bytearray()
    for data in answer.iter_bytes() if decode else answer.iter_raw():
        body += data
        if len(body) > most:
            raise ValueError(f"it has more than {most} bytes")
    return bytes(body)


def load_json(data: bytes) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: it is not JSON, has too many values, or is nested too deeply.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
