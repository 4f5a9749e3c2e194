"""Responses with anything in them."""

from __future__ import annotations

import contextlib
import json

import httpx2
from hypothesis import given
from hypothesis import strategies as st

from builder.core.errors import RegistryError
from builder.formats.registry.answer import Answer, content_length
from builder.formats.registry.auth import _parse_token, parse_challenges
from builder.formats.registry.manifests import is_digest_of, parse_referrers
from tests.support.fuzz import fuzz

HEADER = st.one_of(
    st.text(st.characters(max_codepoint=255, exclude_categories=("Cc",)), max_size=60),
    st.from_regex(r'\s*<[^>]*>\s*;\s*rel="?next"?', fullmatch=True),
    st.from_regex(
        r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{5,9} [A-Z+0-9-]{1,6}", fullmatch=True
    ),
    st.from_regex(r'(Bearer|Basic) (realm|service|scope)="?[^"]*"?,.*', fullmatch=True),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["errors", "code", "message", "token", "expires_in", "manifests", "digest", "size"]
            ),
            inner,
        )
    ),
)
BODY = st.one_of(st.binary(max_size=50), JSON.map(lambda value: json.dumps(value).encode()))


@fuzz(60)
@given(HEADER, BODY)
def test_any_response(header: str, body: bytes) -> None:
    """No header and no body ends in anything but a value."""
    names = ("Retry-After", "Content-Length", "Content-Type", "Content-Encoding")
    headers = httpx2.Headers([(name.encode(), header.encode("latin-1", "ignore")) for name in names])
    answer = Answer(503, "", headers, body, httpx2.URL("https://registry.example/v2/"))
    wait = answer.retry_after
    assert wait is None or wait >= 0
    assert all(len(code) <= 100 and len(message) <= 300 for code, message in answer.errors())
    assert all(text.isprintable() for pair in answer.errors() for text in pair)
    length = content_length(headers)
    assert length is None or length >= 0
    assert answer.media_type.isprintable()
    parse_challenges([header, header])
    token, _ = _parse_token(body)
    assert token.isascii()
    is_digest_of(header, body)


@fuzz(60)
@given(BODY)
def test_any_list_of_referrers(body: bytes) -> None:
    """A list of attached artifacts is a list of descriptors or an error."""
    with contextlib.suppress(RegistryError):
        assert all(entry.size >= 0 for entry in parse_referrers(body, "a/b"))
