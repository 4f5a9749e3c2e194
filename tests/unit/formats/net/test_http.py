"""What a probe of a server says."""

from __future__ import annotations

import httpx
import pytest

from builder.formats.net import http


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (httpx.Response(200), ""),
        (httpx.Response(404), ""),
        (httpx.Response(503), "HTTP 503"),
        (httpx.ReadTimeout("late"), ""),
        (httpx.ConnectTimeout("late"), "no response in time"),
        (httpx.ConnectError("refused"), "refused"),
    ],
)
def test_probe(outcome: httpx.Response | Exception, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is only slow to respond can be used; one that nobody can connect to cannot."""

    def head(*args: object, **options: object) -> httpx.Response:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(httpx, "head", head)
    assert http.probe("https://h.org/x", refused=500) == problem
