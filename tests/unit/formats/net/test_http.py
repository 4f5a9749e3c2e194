"""What a probe of a server says."""

from __future__ import annotations

import httpx2
import pytest

from builder.formats.net import http


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (httpx2.Response(200), ""),
        (httpx2.Response(404), ""),
        (httpx2.Response(503), "HTTP 503"),
        (httpx2.ReadTimeout("late"), ""),
        (httpx2.ConnectTimeout("late"), "no response in time"),
        (httpx2.ConnectError("refused"), "refused"),
    ],
)
def test_probe(outcome: httpx2.Response | Exception, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is only slow to respond can be used; one that nobody can connect to cannot."""

    def head(*args: object, **options: object) -> httpx2.Response:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(httpx2, "head", head)
    assert http.probe("https://h.org/x", refused=500) == problem
