"""The pauses between attempts; downloads themselves are tested in test_packages.py."""

from __future__ import annotations

import httpx

from builder.fetch.download import pause


def asked(value: str) -> httpx.HTTPStatusError:
    """The error of a server that asks for a pause."""
    response = httpx.Response(503, headers={"Retry-After": value.encode("latin-1")})
    return httpx.HTTPStatusError("", request=httpx.Request("GET", "http://localhost/"), response=response)


def test_pause():
    """The pause grows with each attempt, and follows the server up to one minute."""
    assert pause(asked("7"), 1) == 7
    assert pause(asked("86400"), 1) == 60
    plain = [pause(httpx.ReadError(""), tries) for tries in (1, 2, 3)]
    assert plain == sorted(plain) and plain[0] == 0.5
    for value in ("Thu, 01 Jan", "\N{SUPERSCRIPT TWO}"):
        assert pause(asked(value), 1) == 0.5
