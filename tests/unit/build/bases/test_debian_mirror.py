"""apt's settings for a mirror: it trusts whom builder trusts, and asks the same proxies."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.build.bases import debian_mirror
from builder.build.bases.debian_mirror import apt_options, mirror_state
from builder.core.settings import Settings
from tests.support.channel import serve
from tests.support.company import make_server_tls
from tests.support.proxy import proxy_to

SOURCES = "Types: deb\nURIs: {}\nSuites: bookworm\nComponents: main\n"


pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.fixture
def mirror(tmp_path: Path, part_missing) -> Path:
    if not Path(debian_mirror._APT_HELPER).exists():
        part_missing("apt-helper is not installed")
    release = tmp_path / "web/dists/bookworm/InRelease"
    release.parent.mkdir(parents=True)
    release.write_text("signed\n")
    return tmp_path / "web"


def test_authority(mirror: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt trusts an authority that a variable names for other programs."""
    authority, context = make_server_tls(tmp_path / "tls")
    with serve(mirror, context) as server:
        assert mirror_state(SOURCES.format(server), settings) is None
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
        assert mirror_state(SOURCES.format(server), settings)


@pytest.mark.parametrize(
    ("variable", "scheme"), [("HTTP_PROXY", "http"), ("http_proxy", "http"), ("ALL_PROXY", "socks5")]
)
def test_proxy(
    variable: str, scheme: str, mirror: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apt reads http_proxy alone; here it asks the proxy that builder asks, and the same hosts directly."""
    with serve(mirror) as server, proxy_to(server.url.removeprefix("http://")) as proxy:
        monkeypatch.setenv(variable, f"{scheme}://{proxy.host}")
        assert mirror_state(SOURCES.format("http://debian.site/"), settings)
        assert proxy.asked[0].startswith("debian.site")
        proxy.asked.clear()
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,debian.site:80")
        assert 'Acquire::http::Proxy::10.1.2.3 "DIRECT";' in apt_options(mirror, ["http://10.1.2.3/debian"])
        assert "bad" not in apt_options(mirror, ["http://[bad/debian"])  # apt's own error says more
        assert mirror_state(SOURCES.format(f"{server}/"), settings) and not proxy.asked


@pytest.mark.parametrize("uri", ['http://a";Dir::Bin::dpkg/', "http://[bad", "http://", "cdrom:[x]/"])
def test_odd_uri(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base may have any text in its sources: no line of apt's settings is made of it."""
    monkeypatch.setenv("http_proxy", "http://proxy.site:3128")
    assert apt_options(tmp_path, [uri]) == apt_options(tmp_path, [])
