"""Pages of links from anywhere."""

from __future__ import annotations

import time

import httpx2
import pytest

from builder.core.errors import UsageError
from builder.formats.net import answers
from builder.formats.net.findlinks import FindLinks


def remote(text: str, place: str = "https://h.example/") -> list[str]:
    """The URLs of a.whl on a page with this text."""
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=iter([text.encode()])))
    with httpx2.Client(transport=transport) as client:
        return list(FindLinks([place]).remote("a.whl", client))


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_links_that_are_no_urls() -> None:
    """They are left out; the others count."""
    text = "<a href='http://[::1/a.whl'>x</a><a href='http://h:x/b'>x</a><a data-x='>=3' href='c/a.whl'>"
    assert remote(text) == ["https://h.example/c/a.whl"]
    assert remote(text.replace(">=3", "&gt;=3")) == ["https://h.example/c/a.whl"]
    assert remote("", "http://[::1/a.whl") == []
    assert list(FindLinks(["http://[::1", "file://[x/a.whl"]).local("a.whl")) == []
    with pytest.raises(UsageError, match="its home folder is not known"):
        list(FindLinks(["~no-such-user/x"]).local("a.whl"))


@pytest.mark.parametrize("part", ["<a ", "<a href", "<a href=", "<a href = 'x", " href=", "<a "])
def test_slow_pages(part: str) -> None:
    """A page needs time in proportion to its size."""
    start = time.process_time()
    assert remote(part * 40_000) == []
    assert time.process_time() - start < 2


def test_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page over the limit counts as empty."""
    link = "<a href='a.whl'>"
    assert remote(link) == ["https://h.example/a.whl"]
    monkeypatch.setattr(answers, "MAX_PAGE", len(link) - 1)
    assert remote(link) == []
