"""The checks of a host, without a container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.errors import ImageError
from builder.core.settings import Settings
from builder.deliver import doctor
from builder.deliver.doctor import Finding, examine_host
from tests.support.channel import Server, serve
from tests.support.company import make_server_tls
from tests.support.ports import free_ports
from tests.support.project import tiny_channel, tiny_project
from tests.support.proxy import proxy_to


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a host whose runners all work."""
    monkeypatch.setattr(doctor, "try_runner", lambda runner: None)
    return Settings(tmp_path / "cache", tmp_path / "tmp", jobs=1, offline=True)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    """The servers of builds, but for Debian's mirror."""
    for name in ("simple", "v2", "channel/noarch"):
        (tmp_path / "web" / name).mkdir(parents=True)
    (tmp_path / "web/channel/noarch/repodata.json").write_text("{}")
    with serve(tmp_path / "web") as server:
        yield server


@pytest.fixture
def online(settings: Settings, web: Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with mirrors, a configuration of pip, and a mirror of Debian that has none of its files."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("PIP_", "REQUESTS_CA", "CURL_CA", "SSL_CERT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{web}/simple")
    monkeypatch.setattr(doctor, "apt_sources", lambda suite: f"URIs: {web}/debian\nSuites: {suite}\n")
    mirrors = (
        ("https://conda.anaconda.org/conda-forge", f"{web}/channel"),
        ("docker://docker.io", web.url.replace("http:", "docker:")),
    )
    return replace(settings, offline=False, mirrors=mirrors)


def found(settings: Settings, root: Path = Path("/nonexistent")) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine_host(settings, root)}


def test_little_space(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room for a CUDA image has to be fixed."""
    monkeypatch.setattr(doctor, "_ENOUGH", float("inf"))
    assert found(settings)["cache"].status == "bad"
    assert "BUILDER_CACHE to another disk" in found(settings)["cache"].hint


def test_debian(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that cannot make Debian bases has the reason and the hint of the build."""

    def refuse(reference: str) -> str:
        raise ImageError(f"{reference}: mmdebstrap is not installed", "apt-get install mmdebstrap")

    monkeypatch.setattr(doctor, "mmdebstrap_mode", refuse)
    finding = found(settings)["base: debian:SUITE"]
    assert (finding.status, finding.found) == ("missing", "mmdebstrap is not installed")
    assert finding.hint == "apt-get install mmdebstrap"


def test_no_gpu(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert found(settings)["GPU"].status == "missing"


def test_network(online: Settings, web: Server) -> None:
    """Servers that answer, with their mirrors, and one that does not have what a build reads first."""
    rows = found(online)
    assert rows["network"].status == "ok" and rows["network"].found.endswith("; no proxy")
    assert rows["package index"] == Finding("package index", "ok", f"{web}/simple answers")
    assert rows["conda channel"] == Finding("conda channel", "ok", f"{web}/channel answers")
    assert rows["Docker Hub"] == Finding("Docker Hub", "ok", f"{web} answers")
    debian = rows["Debian mirror"]
    assert (debian.status, debian.found) == ("missing", f"{web}/debian: HTTP 404")
    assert "builds take what is in the cache" in debian.hint


def test_network_of_a_project(online: Settings, web: Server, tmp_path: Path) -> None:
    """The channels are those of its targets; a target that is wrong does not end the examination."""
    tiny_channel(tmp_path / "web/mine")
    made = tiny_project(tmp_path / "project", f"{web}/mine")
    (made.recipe.parent / "wrong.yaml").write_text("enviroment: x.yml\n")
    assert found(online, made.root)["conda channel"].found == f"{web}/mine/ answers"
    assert web.requests == [], "nothing is downloaded"


def test_find_links(online: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no-index the index is not asked; a folder of find-links has to exist."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    rows = found(online)
    assert "package index" not in rows
    assert rows["find-links"].found == f"{tmp_path / 'wheels'}: no such file or folder"
    (tmp_path / "wheels").mkdir()
    assert found(online)["find-links"].status == "ok"


def test_offline(online: Settings, web: Server) -> None:
    """No server is asked, and what would be used is still named."""
    rows = found(replace(online, offline=True))
    assert rows["network"].found.endswith("; no proxy; offline: no server is asked")
    assert not {"package index", "conda channel", "Docker Hub", "Debian mirror"} & rows.keys()


def test_unknown_host(online: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without network nothing has to be fixed."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://ann:hush@pypi.invalid/simple")
    index = found(online)["package index"]
    assert index.status == "missing" and "cache" in index.hint and "hush" not in str(index)
    assert index.found == "https://pypi.invalid/simple: unknown host name"


def test_authority(online: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that is not trusted, a variable that makes it so, and one that names no file."""
    authority, context = make_server_tls(tmp_path / "tls")
    (tmp_path / "https/simple").mkdir(parents=True)
    with serve(tmp_path / "https", context) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server}/simple")
        index = found(online)["package index"]
        assert index.status == "broken" and "its certificate is not trusted" in index.found
        assert "SSL_CERT_FILE" in index.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        rows = found(online)
        assert rows["package index"].status == "ok"
        assert f", SSL_CERT_FILE ({authority}); " in rows["network"].found
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent.pem")
    network = found(online)["network"]
    assert network.status == "bad"
    assert network.found.startswith("SSL_CERT_FILE names /nonexistent.pem, but it does not exist")


def test_proxies(online: Settings, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy, without its password, of what goes through it; and one that does not answer."""
    host = f"127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://files.site/simple")
    monkeypatch.setenv("http_proxy", f"http://ann:hush@{host}")
    rows = found(online)
    named = f"the proxy {host} of http_proxy"
    assert rows["network"].found.endswith(f"; {named}") and "hush" not in str(rows)
    index = rows["package index"]  # the last one
    assert index.status == "broken" and index.found.endswith(f"/simple: {named}: it refuses connections")
    assert "NO_PROXY" in index.hint and rows["conda channel"].status == "ok"
    with proxy_to(web.url.removeprefix("http://")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.host)
        through = f"http://files.site/simple answers through the proxy {proxy.host} of http_proxy"
        assert found(online)["package index"].found == through
        monkeypatch.setenv("NO_PROXY", "files.site")
        assert found(online)["package index"].found == "http://files.site/simple: unknown host name"
        assert set(proxy.asked) == {"files.site"}
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("http_proxy", "nothing://x")
    network = found(online)["network"]
    assert network.status == "bad" and network.found.startswith("http_proxy does not name a proxy")


def test_no_url(online: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no URL is a row like any other."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://[no/simple")
    assert found(online)["package index"].found.startswith("http://[no/simple: ")
