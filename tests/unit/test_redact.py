"""The one function that removes credentials from text."""

from __future__ import annotations

import pytest

from builder.redact import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:p%40ss@h.org/x", "https://h.org/x"),
        ("- 'https://token@h.org/simple'", "- 'https://h.org/simple'"),
        ("tcp://me:secret@host:2376", "tcp://host:2376"),
        (
            "https://u:p@host:8443/t/abc-123/chan/x.conda?sig=1#f",
            "https://host:8443/t/***/chan/x.conda?sig=***#f",
        ),
        ("https://host/api/t/tok/chan/noarch", "https://host/api/t/***/chan/noarch"),
        (
            "https://h.org/x?X-Amz-Credential=a%2Fb&X-Amz-Signature=c&v=1",
            "https://h.org/x?X-Amz-Credential=***&X-Amz-Signature=***&v=1",
        ),
        ("https://h.org/x?access_token=abc", "https://h.org/x?access_token=***"),
        ("https://u:secret@[broken/x", "https://[broken/x"),
        ("two: https://a:b@c/ and https://d:e@f/", "two: https://c/ and https://f/"),
    ],
)
def test_credentials_go(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "https://h.org/chan#a@b and mail@h.org",
        "https://h.org/pkg@1.0/x",
        "https://h.org/x?v=1&download=2",
        "https://$USER_NAME:$PASSWORD@h.org/x",
        "https://me:${PASSWORD}@h.org/x",
        "https://$TOKEN@h.org/x",
        "https://h.org/t/$TOKEN/chan/noarch",
        "https://h.org/t/${TOKEN}/chan/noarch",
        "unix:///var/run/docker.sock",
    ],
)
def test_the_rest_stays(text: str) -> None:
    """What holds no credential stays as it is; the name of a variable is not a credential."""
    assert redact(text) == text


def test_dollar_in_a_password() -> None:
    """A password that merely contains a dollar sign is no variable."""
    assert redact("https://me:pa$word@h.org/x") == "https://h.org/x"
