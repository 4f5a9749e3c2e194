"""What servers answer in JSON or HTML, read within bounds: the bytes as they were sent."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from .pace import Pace

#: Bytes of an answer. The largest page of PyPI, that of ddtrace with 47,000 files, has 21 MB.
MAX_PAGE = 64 << 20
#: Commas and brackets of an answer in JSON: each may be a value, which takes some 100 bytes of memory.
#: That page has 520,000.
MAX_VALUES = 2_000_000


def read_body(answer: httpx2.Response) -> bytes:
    """Return the body of an answer.

    Raises:
        ValueError: it is too large, or encoded, which :func:`.http.make_client` does not ask for.
        httpx2.HTTPError: the status is an error, or the connection broke, or is too slow.
    """
    encoding = answer.raise_for_status().headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ValueError(f"its Content-Encoding is {encoding[:40]!r}, which was not asked for")
    body = bytearray()
    for data in Pace.of(answer.iter_raw()):
        body += data
        if len(body) > MAX_PAGE:
            raise ValueError(f"it has more than {MAX_PAGE} bytes")
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
