"""The HTTP client: probes, proxies, and errors that say who failed."""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from builder.formats.net import http
from builder.formats.net.trust import network_hint
from builder.formats.registry.client import RegistryClient
from builder.formats.registry.errors import RegistryError
from tests.support.channel import Server, serve
from tests.support.company import make_server_tls
from tests.support.ports import free_ports
from tests.support.proxy import proxy_to


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

    monkeypatch.setattr(httpx2.Client, "head", head)
    assert http.probe("https://h.org/x", refused=500) == problem


@pytest.fixture
def web(tmp_path: Path, no_proxies: None) -> Iterator[Server]:
    """A server with one file."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "file").write_text("content")
    with serve(tmp_path / "web") as server:
        yield server


@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
def test_proxy(scheme: str, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a host that only the proxy knows; hosts of NO_PROXY and this machine are asked directly."""
    with proxy_to(web.url.removeprefix("http://")) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"{scheme}://{proxy.host}")
        with http.make_client() as client:
            assert client.get("http://files.site/file").text == "content"
            assert proxy.asked == ["files.site" if scheme == "http" else "files.site:80"]
            assert client.get(f"{web}/file").text == "content"
            monkeypatch.setenv("NO_PROXY", "*.site")
            with pytest.raises(httpx2.ConnectError):
                client.get("http://files.site/file")
        assert len(proxy.asked) == 1


def test_password_of_a_proxy(web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """User and password of the proxy's URL are sent to it, and are in no message."""
    with proxy_to(web.url.removeprefix("http://"), "407 Proxy Authentication Required") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:hush@{proxy.host}")
        with pytest.raises(RegistryError) as caught, RegistryClient("registry.site") as client:
            client.manifests.head("team/image", "1")
        assert set(proxy.logins) == {"Basic " + base64.b64encode(b"ann:hush").decode()}
        assert f": the proxy {proxy.host} of HTTPS_PROXY: 407 Proxy Authentication Required" in str(
            caught.value
        )
    assert "hush" not in str(caught.value) and "password" in caught.value.hint


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
def test_refusing_proxy(scheme: str, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that came from the proxy names it."""
    with proxy_to(web.url.removeprefix("http://"), "403 Forbidden") as proxy:
        monkeypatch.setenv("https_proxy", f"{scheme}://{proxy.host}")
        reason = http.probe("https://files.site/file")
        assert reason.startswith(f"the proxy {proxy.host} of https_proxy: ")
        assert proxy.asked == ["files.site:443"]


def test_dead_proxy(no_proxies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same if it does not answer at all, or its name is wrong."""
    host = f"127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("HTTPS_PROXY", host)
    assert http.probe("https://files.site/") == (f"the proxy {host} of HTTPS_PROXY: it refuses connections")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy.invalid")
    assert http.probe("https://files.site/").startswith("the proxy proxy.invalid of HTTPS_PROXY: ")


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\u0661.0.0.1", "me:se\x7fcret@proxy"])
def test_proxy_without_host_name(host: str, no_proxies: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers know errors of httpx2 only; the password is in no message."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://{host}:3128")
    reason = http.probe("https://files.site/")
    shown = host.rpartition("@")[2]
    assert ": not a host name: " in reason
    assert reason.startswith(f"the proxy {shown}:3128 of HTTPS_PROXY: ") and "cret" not in reason


def test_plain_proxy(web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a proxy that does not speak https itself, its variable is said."""
    monkeypatch.setenv("HTTPS_PROXY", web.url.replace("http:", "https:"))
    reason = http.probe("https://files.site/")
    assert reason.startswith("TLS failed: ") and reason.endswith(" of HTTPS_PROXY")
    assert "http://HOST:PORT" in network_hint(reason, "another")
    with pytest.raises(RegistryError, match=re.escape(f"cannot reach files.site: {reason}")) as caught:
        RegistryClient("files.site").manifests.head("team/image", "1")
    assert "http://HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ciphers": "ECDHE-ECDSA-AES128-SHA", "maximum_version": ssl.TLSVersion.TLSv1_2}, ""),
        ({"ciphers": "AECDH-AES128-SHA:@SECLEVEL=0", "maximum_version": ssl.TLSVersion.TLSv1_2}, "alert"),
        ({"verify_mode": ssl.CERT_REQUIRED}, "alert certificate required"),
    ],
)
def test_tls(
    settings: dict[str, Any],
    reason: str,
    tmp_path: Path,
    no_proxies: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older servers are accepted as curl does; why a server ends TLS is said in its words."""
    authority, context = make_server_tls(tmp_path / "tls")
    context.load_verify_locations(authority)
    context.set_ciphers(settings.pop("ciphers", "DEFAULT"))
    for name, value in settings.items():
        setattr(context, name, value)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with serve(tmp_path, context) as server:
        found = http.probe(f"{server.url}/tls/ext")
    assert found == reason if not reason else found.startswith("TLS failed: ") and reason in found


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".org"])
def test_no_host_name(host: str, no_proxies: None) -> None:
    """Python's resolver raises UnicodeError for these; callers know errors of httpx2 only."""
    with http.make_client() as client, pytest.raises(httpx2.ConnectError, match="not a host name"):
        client.get(f"http://{host}/")


def test_netrc_is_a_pipe(web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's netrc would wait for somebody to write into it."""
    os.mkfifo(tmp_path / "netrc")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert http.probe(f"{web}/file") == ""
