"""Proxies of the environment."""

from __future__ import annotations

import pytest

from builder.core.errors import FetchError
from builder.formats.net.proxies import exclusions, is_loopback, proxy_for

pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.8.0.1:1", True),
        ("[::1]:5000", True),
        ("a.localhost", True),
        ("127.0.0.1.example", False),
        ("localhost.example", False),
        ("10.0.0.1:5000", False),
        ("[::2]:1", False),
    ],
)
def test_loopback(host: str, answer: bool) -> None:
    """Which hosts are this machine."""
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    ("entry", "direct", "proxied"),
    [
        ("*", "https://a.org/ http://10.0.0.1/", ""),
        ("example.org", "https://example.org/ https://a.b.example.org:8/", "https://notexample.org/"),
        (".example.org", "https://a.example.org/ https://example.org/", "https://notexample.org/"),
        ("*.example.org", "https://a.example.org/", "https://example.org/ https://notexample.org/"),
        ("EXAMPLE.org", "https://Example.ORG/ https://example.org./", "https://example.com/"),
        ("example.org:443", "https://example.org/ https://a.example.org:443/", "https://example.org:8/"),
        ("example.org:80", "http://example.org/", "https://example.org/"),
        ("*.example.org:5000", "https://a.example.org:5000/", "https://a.example.org/"),
        ("10.0.0.0/8", "https://10.255.255.1:5000/", "https://11.0.0.1/ https://host10.org/"),
        ("10.1.2.3/8", "https://10.9.9.9/", "https://11.0.0.1/"),
        ("10.0.0.1", "https://10.0.0.1:5000/", "https://10.0.0.10/ https://110.0.0.1/"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000/", "https://10.0.0.1/"),
        ("fd00::/8", "https://[fd12::1]/ https://[fd00::2]:5000/", "https://[fe00::1]/"),
        ("fd00::1", "https://[fd00::1]:8/ https://[FD00:0::1]/", "https://[fd00::11]/"),
        ("[fd00::1]", "https://[fd00::1]:8/", "https://[fd00::2]/"),
        ("[fd00::1]:5000", "https://[fd00::1]:5000/", "https://[fd00::1]/"),
        ("a.org,b.org c.org, ,", "https://a.org/ https://b.org/ https://c.org/", "https://d.org/"),
        ("10.0.0.0/99,::/200,:80,.", "", "https://10.0.0.1/ https://a.org/"),
        ("example.org.", "https://example.org/ https://a.example.org/ https://example.org./", ""),
        ("a.org , .example.org.:443", "https://a.example.org/", "https://a.example.org:8/"),
        (".示例.com", "https://www.xn--fsq092h.com/ https://示例.com/", "https://xn--fsq092h.org/"),
        (
            "xn--fsq092h.com,*.BÜCHER.org",
            "https://a.示例.com/ https://a.xn--bcher-kva.org/",
            "https://bücher.org/",
        ),
        ("2001:db8::52:1", "https://[2001:db8::52:1]:8/", "https://[2001:db8::52:2]/"),
    ],
)
def test_hosts_without_proxy(entry: str, direct: str, proxied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, addresses and ranges of NO_PROXY, with and without ports."""
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", entry)
    assert not [url for url in direct.split() if proxy_for(url)]
    assert not [url for url in proxied.split() if not proxy_for(url)]


@pytest.mark.parametrize("url", ["http://localhost:5000/", "https://127.0.0.1/", "http://[::1]:80/"])
def test_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Go, no proxy is asked for this machine."""
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    assert proxy_for(url) is None


def test_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv, rattler and git get no form that they do not read, and ask no proxy for this machine."""
    monkeypatch.setenv("NO_PROXY", " *.site.org a.org:5000,[fd00::1]:80 ,.B.org., 10.0.0.0/8")
    found = exclusions()
    assert found["no_proxy"].startswith("site.org,a.org,fd00::1,b.org,10.0.0.0/8,localhost,127.0.0.1,")
    assert found["no_proxy"] == found["NO_PROXY"]
    monkeypatch.setenv("no_proxy", "a.org, *")
    assert exclusions()["no_proxy"] == "*"


def test_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheme's variable, in lower case first, else ALL_PROXY; without a scheme it is an http proxy."""
    assert proxy_for("https://a.org/") is None
    monkeypatch.setenv("ALL_PROXY", "socks5h://user:secret@login:1080")
    monkeypatch.setenv("HTTPS_PROXY", "upper:3128")
    assert str(proxy_for("http://a.org/")) == "the proxy login:1080 of ALL_PROXY"
    assert str(proxy_for("https://a.org/")) == "the proxy upper:3128 of HTTPS_PROXY"
    monkeypatch.setenv("https_proxy", "https://lower:3128")
    proxy = proxy_for("https://a.org/")
    assert proxy and proxy.url == "https://lower:3128" and proxy.variable == "https_proxy"


@pytest.mark.parametrize(
    "value", ["socks4://h:1", "ftp://h:1", "http://", "http://h:port", "http://[::1", "://"]
)
def test_not_a_proxy(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what can be written; the value may have a password."""
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(FetchError, match="HTTPS_PROXY does not name a proxy") as caught:
        proxy_for("https://a.org/")
    assert "socks5h://HOST:PORT" in caught.value.hint
