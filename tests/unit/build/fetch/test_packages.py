"""Fetching packages from a real HTTP server on loopback that fails as a test says."""

from __future__ import annotations

import base64
import hashlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import builder.build.fetch.download
from builder.build.fetch.packages import fetch_for, fetch_packages
from builder.core.errors import FetchError, HashMismatch, SpaceError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.net.urlvariables import UrlVariables
from builder.lock.config.recipe import Recipe
from builder.lock.inputs import Inputs
from builder.lock.spec import Environment
from tests.support.disk import small_disk
from tests.support.waiting import until
from tests.unit.build.fetch.conftest import DATA, Notes, mirrored, offline, package, partials

ROOT = Path(__file__).parents[4]

# without faults


def test_order_and_reuse(server, settings, store):
    """Packages come in the given order and are downloaded once."""
    packages = [
        package(server.put(f"/c/linux-64/p-{i}-0.conda", b"%d" % i * 1000), b"%d" % i * 1000)
        for i in range(20)
    ]
    fetched = fetch_packages(packages, Workspace(settings, store))
    assert [f.package for f in fetched] == packages
    assert [f.path.read_bytes()[:1000] for f in fetched] == [(b"%d" % i * 1000)[:1000] for i in range(20)]
    assert all(f.path == store.path(f.package.key) and f.size == f.path.stat().st_size for f in fetched)
    assert partials(store) == []
    asked = len(server.log)
    assert fetch_packages(packages, Workspace(settings, store)) == fetched
    assert len(server.log) == asked == 20
    assert fetch_packages(packages, Workspace(offline(settings), store)) == fetched


def test_locked_by_md5(server, settings, store):
    """A package locked by MD5 is stored by SHA-256 and found again."""
    md5 = hashlib.md5(DATA).hexdigest()
    locked = package(server.put("/p-1-0.tar.bz2"), sha256=None, md5=md5)
    first = fetch_packages([locked], Workspace(settings, store))[0]
    assert first.path == store.path(f"sha256:{hashlib.sha256(DATA).hexdigest()}")
    assert fetch_packages([locked], Workspace(settings, store))[0].path == first.path
    assert len(server.log) == 1
    with pytest.raises(HashMismatch, match="md5:" + md5):
        fetch_packages(
            [package(server.put("/q-1-0.tar.bz2"), sha256=None, md5="0" * 32)], Workspace(settings, store)
        )


def test_variables_in_urls(server, settings, store, monkeypatch):
    """Variables in a URL are expanded for the request, and not in messages."""
    monkeypatch.setenv("CHANNEL_TOKEN", "s3cr3t")
    server.put("/t/s3cr3t/c/p-1-0.conda")
    url = server.url + "/t/$CHANNEL_TOKEN/c/p-1-0.conda"
    named = UrlVariables((server.url + "/t/${CHANNEL_TOKEN}/c",))
    assert fetch_packages([package(url)], Workspace(settings, store), variables=named)
    with pytest.raises(FetchError) as e:
        missing = server.url + "/t/$CHANNEL_TOKEN/p-2-0.conda"
        fetch_packages([package(missing, b"x")], Workspace(settings, store), variables=named)
    assert "s3cr3t" not in str(e.value) and "/t/$CHANNEL_TOKEN/p-2-0.conda: HTTP 404" in str(e.value)
    assert server.log[-1][1] == "/t/s3cr3t/p-2-0.conda"
    monkeypatch.delenv("CHANNEL_TOKEN")
    with pytest.raises(FetchError, match="CHANNEL_TOKEN, which is not set"):
        fetch_packages([package(missing, b"x")], Workspace(settings, store), variables=named)


@pytest.mark.parametrize(
    "path",
    ["/linux-64/$CHANNEL_TOKEN/$REGISTRY_PASSWORD/$SECRET/p-1-0.conda", "/u/x$CHANNEL_TOKEN/p-1-0.conda"],
)
def test_hostile_lock(server, settings, store, monkeypatch, path):
    """The URLs of a lock get no value of a variable that the project does not name for that place."""
    for name in ("CHANNEL_TOKEN", "REGISTRY_PASSWORD", "SECRET"):
        monkeypatch.setenv(name, "s3cr3t")
    elsewhere = UrlVariables(("https://channel.example/t/$CHANNEL_TOKEN/c", server.url + "/t/$CHANNEL_TOKEN"))
    for variables in (UrlVariables(), elsewhere):
        with pytest.raises(FetchError) as e:
            fetch_packages([package(server.url + path)], Workspace(settings, store), variables=variables)
        assert "names the variable CHANNEL_TOKEN" in e.value.hint and "s3cr3t" not in str(e.value)
    assert server.log and not [request for request in server.log if "s3cr3t" in str(request)]


# faults of servers


def test_cut_connection(server, settings, store, quick):
    """A cut connection is resumed where it ended."""
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [("cut", 100_000), ("cut", 200_000)]
    notes = Notes()
    assert fetch_packages([package(url)], Workspace(settings, store, notes))[0].path.read_bytes() == DATA
    first, second, third = server.gets("/p.conda")
    assert (first, second, third) == ("", "bytes=100000-", "bytes=300000-")
    assert notes.bytes == len(DATA)  # not a byte twice


def test_transient_errors(server, settings, store, quick):
    """Errors that pass are retried."""
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [500, 503, 429]
    assert fetch_packages([package(url)], Workspace(settings, store))[0].path.read_bytes() == DATA
    assert len(server.log) == 4


def test_wrong_bytes_twice(server, settings, store):
    """Wrong bytes twice are an error that names file, URL and both hashes, without credentials."""
    url = server.put("/p-1-0.conda", b"something else").replace("http://", "http://joe:pa55word@")
    locked = package(url)
    with pytest.raises(HashMismatch) as e:
        fetch_packages([locked], Workspace(settings, store))
    text = str(e.value)
    assert "p-1-0.conda" in text and server.url + "/p-1-0.conda" in text
    assert locked.key in text and hashlib.sha256(b"something else").hexdigest() in text
    assert "pa55word" not in text and "joe" not in text and "lock again" in e.value.hint
    assert len(server.log) == 2 and partials(store) == [] and store.get(locked.key) is None


def test_failure_stops_the_others(server, settings, store):
    """A missing package fails at once; slow downloads are stopped and can be resumed."""
    datas = [DATA * 20 + b"%d" % i for i in range(3)]
    slow = [package(server.put(f"/slow{i}.conda", data), data) for i, data in enumerate(datas)]
    for i in range(3):
        server.faults[f"/slow{i}.conda"] = [("slow", 0.5)]  # 200 s each
    server.faults["/gone.conda"] = [lambda: until(lambda: any(p.stat().st_size for p in partials(store)))]
    with pytest.raises(FetchError, match="HTTP 404"):
        fetch_packages([*slow, package(server.url + "/gone.conda")], Workspace(settings, store))
    assert partials(store)  # to be resumed
    assert not any(store.path(p.key).exists() for p in slow)


def test_credentials(server, settings, store, monkeypatch, tmp_path):
    """Credentials go to the server and into no message."""
    server.put("/p.conda")
    fetch_packages(
        [package(server.url.replace("//", "//joe:pa55%20word@") + "/p.conda")], Workspace(settings, store)
    )
    assert server.log[-1][3] == "Basic " + base64.b64encode(b"joe:pa55 word").decode()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password hush\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fetch_packages([package(server.put("/q.conda", b"q"), b"q")], Workspace(settings, store))
    assert server.log[-1][3] == "Basic " + base64.b64encode(b"ann:hush").decode()
    server.faults["/r.conda"] = [403]
    with pytest.raises(FetchError, match="HTTP 403") as e:
        url = server.put("/r.conda", b"r").replace("//", "//joe:pa55word@") + "?key=pa55word"
        fetch_packages([package(url, b"r")], Workspace(settings, store))
    assert "pa55word" not in str(e.value) and "netrc" in e.value.hint


def test_unknown_certificate(server, settings, store, tmp_path, monkeypatch, part_missing):
    """An unknown certificate is an error; pip's ``cert`` and SSL_CERT_FILE are used."""
    if not shutil.which("openssl"):
        part_missing("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.httpd.socket = context.wrap_socket(server.httpd.socket, server_side=True)
    server.scheme = "https"
    locked = package(server.put("/p.conda"))
    with pytest.raises(FetchError, match="its certificate is not trusted") as e:
        fetch_packages([locked], Workspace(settings, store))
    assert "SSL_CERT_FILE" in e.value.hint
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\ncert = {cert}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    assert fetch_packages([locked], Workspace(settings, store))[0].path.read_bytes() == DATA
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(FetchError, match=r"SSL_CERT_FILE names .*missing\.pem"):
        fetch_packages([package(server.url + "/q.conda", b"q")], Workspace(settings, store))


# offline, mirrors, find-links


def test_offline(server, settings, store):
    """Offline, no request is made."""
    with pytest.raises(FetchError, match="offline") as e:
        fetch_packages([package(server.put("/p.conda"))], Workspace(offline(settings), store))
    assert "BUILDER_MIRRORS" in e.value.hint and server.log == []


def test_unreachable_host(server, settings, store, quick):
    """An unreachable host is tried once; a mirror serves."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    packages = [package(f"{dead}/conda-forge/linux-64/p{i}-1-0.conda", b"%d" % i) for i in range(3)]
    with pytest.raises(FetchError, match="it refuses connections|does not answer") as e:
        fetch_packages(packages, Workspace(settings, store))
    assert "BUILDER_MIRRORS" in e.value.hint
    for i in range(3):
        server.put(f"/mirror/linux-64/p{i}-1-0.conda", b"%d" % i)
    own = mirrored(
        settings, (f"{dead}/conda-forge", f"{server.url}/mirror/"), (dead, "http://nowhere.invalid")
    )
    assert [f.path.read_bytes() for f in fetch_packages(packages, Workspace(own, store))] == [
        b"0",
        b"1",
        b"2",
    ]


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_mirror_folder(settings, store, tmp_path, form):
    """A mirror may be a folder. Its files are stored: without the variable they are still there."""
    file = tmp_path / "mirror" / "linux-64" / "p 1+2.conda"
    file.parent.mkdir(parents=True)
    file.write_bytes(DATA)
    own = mirrored(settings, ("https://conda.anaconda.org/x", form.format(tmp_path / "mirror")))
    locked = package("https://conda.anaconda.org/x/linux-64/p%201+2.conda")
    for which in (own, offline(own), offline(settings)):
        assert fetch_packages([locked], Workspace(which, store))[0].path == store.path(locked.key)
    assert store.path(locked.key).samefile(file), "a hard link where possible"
    file.write_bytes(b"!" + DATA[1:])
    with pytest.raises(FetchError):
        fetch_packages([locked], Workspace(offline(settings), store))
    assert file.exists() and not store.path(locked.key).exists(), "a changed file is no blob any more"


def test_local_files(settings, store, tmp_path, monkeypatch):
    """Local files are used in place and hashed once."""
    wheel = tmp_path / "dist dir" / "some_package-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(DATA)
    locked = package(wheel.as_uri(), manager="pip")
    assert fetch_packages([locked], Workspace(settings, store))[0].path == wheel
    with monkeypatch.context() as m:
        m.setattr("builder.core.store.fingerprints.sha256_file", lambda path: pytest.fail("hashed again"))
        assert fetch_packages([locked], Workspace(settings, store))[0].path == wheel
    wheel.write_bytes(DATA + b"!")
    with pytest.raises(HashMismatch, match=r"some_package.*does not match the hash in the lock") as e:
        fetch_packages([locked], Workspace(settings, store))
    assert locked.key in str(e.value)
    wheel.unlink()
    with pytest.raises(FetchError, match="no such file"):
        fetch_packages([locked], Workspace(settings, store))


def test_built_wheel(settings, store, tmp_path, monkeypatch):
    """A wheel that builder built is in the store, or in a folder such as the project's wheels/."""
    name = "tool-1.0-py3-none-any.whl"
    built = package(f"builder://wheels/{name}", manager="pip")
    with pytest.raises(FetchError, match="neither the cache, wheels/ nor a find-links folder has it") as e:
        fetch_packages([built], Workspace(settings, store))
    assert f"copy {name} into the project's folder wheels/" in e.value.hint
    assert "builder lock --update some-package" in e.value.hint
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(DATA)
    (fetched,) = fetch_packages([built], Workspace(settings, store), find_links=[str(tmp_path / "wheels")])
    assert fetched.path == tmp_path / "wheels" / name
    store.add(DATA)
    assert fetch_packages([built], Workspace(offline(settings), store))[0].path == store.path(built.key)


def test_find_links(server, settings, store, tmp_path, monkeypatch):
    """find-links folders serve wheels by name, whatever their URL."""
    name = "some_package-1.0+cpu-py3-none-any.whl"
    stale, right = tmp_path / "stale", tmp_path / "right"
    for folder, data in ((stale, b"another build"), (right, DATA)):
        folder.mkdir()
        (folder / name).write_bytes(data)
    gone = package(f"{server.url}/gone/{name.replace('+', '%2B')}", manager="pip")
    pseudo = package(f"builder://find-links/{name}", manager="pip")
    for locked in (gone, pseudo):
        fetched = fetch_packages(
            [locked], Workspace(settings, store), find_links=[str(stale), right.as_uri()]
        )
        assert fetched[0].path == right / name
    monkeypatch.setenv("PIP_FIND_LINKS", f"{stale} {right}")
    assert fetch_packages([gone], Workspace(offline(settings), store))[0].path == right / name
    monkeypatch.setenv("PIP_FIND_LINKS", str(stale))
    with pytest.raises(HashMismatch, match="stale"):
        fetch_packages([pseudo], Workspace(settings, store))
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(FetchError) as e:
        fetch_packages([pseudo], Workspace(settings, store))
    assert "PIP_FIND_LINKS" in e.value.hint
    conda = package(f"{server.url}/gone/{name}")
    with pytest.raises(FetchError):  # conda packages do not come from find-links
        fetch_packages([conda], Workspace(settings, store), find_links=[str(right)])


@pytest.mark.parametrize(
    ("links", "index"),
    [
        (["/links.html"], ""),
        ([], "/simple"),
        (["/files/some_package-1.0-py3-none-any.whl"], ""),
    ],
    ids=["page", "index", "direct"],
)
def test_find_links_pages(server, settings, store, monkeypatch, links, index):
    """find-links may be web pages and indexes."""
    name = "some_package-1.0-py3-none-any.whl"
    server.put("/files/" + name)
    link = f'<a  class="x" href="{server.url}/files/{name}#sha256=00">{name}</a>'
    page = f'<html>{link}<a href="/other.whl">o</a></html>'.encode()
    server.put("/links.html", page)
    server.put("/simple/some-package/", page)
    if index:
        monkeypatch.setenv("PIP_INDEX_URL", server.url + index)
    find_links = [server.url + link for link in links]
    locked = package(f"{server.url}/gone/{name}", manager="pip")
    assert (
        fetch_packages([locked], Workspace(settings, store), find_links=find_links)[0].path.read_bytes()
        == DATA
    )


# damage, kills, other processes


SCRIPT = """
import sys
from pathlib import Path
from builder.build.fetch.packages import fetch_packages
from builder.core.model import LockedPackage
from builder.formats.net.urlvariables import UrlVariables
from builder.core.parallel import in_parallel
from builder.core.settings import Settings
from builder.core.workspace import Workspace
cache, url, sha256 = sys.argv[1:]
settings = Settings.from_environment({"HOME": "/nonexistent", "BUILDER_CACHE": cache})
p = LockedPackage("p", "1", "conda", "linux-64", url, sha256)
print(fetch_packages([p], Workspace.of(settings))[0].path)
"""


def start(settings: Settings, locked) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(settings.cache), locked.url, str(locked.sha256)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_resume_after_kill(server, settings, store, how):
    """A download that was killed is resumed by the next run."""
    data = DATA * 20
    locked = package(server.put("/p.conda", data), data)
    server.faults["/p.conda"] = [("slow", 0.3)]  # 120 s
    process = start(settings, locked)
    until(lambda: any(p.stat().st_size >= 1 << 16 for p in partials(store)))
    process.send_signal(how)
    assert process.wait(120) != 0
    assert not store.path(locked.key).exists()
    have = partials(store)[0].stat().st_size
    assert 0 < have < len(data)
    assert fetch_packages([locked], Workspace(settings, store))[0].path.read_bytes() == data
    assert server.gets("/p.conda") == ["", f"bytes={have}-"] and partials(store) == []


@pytest.mark.root
@pytest.mark.parametrize("announced", [True, False])
def test_full_disk(server, settings, tmp_path, monkeypatch, announced):
    """A full disk is an error that names the folder."""
    with small_disk(tmp_path / "small", "400k") as disk:
        own = Settings(disk / "cache", tmp_path / "tmp", 1)
        if not announced:  # as when another process fills the disk meanwhile
            monkeypatch.setattr(builder.build.fetch.download, "require_space", lambda *args: None)
        with pytest.raises(SpaceError, match=str(own.cache)) as e:
            fetch_packages([package(server.put("/p.conda"))], Workspace(own, Store(own.cache)))
        assert "BUILDER_CACHE" in e.value.hint
        small = package(server.put("/small.conda", b"fits"), b"fits")
        for left in partials(Store(own.cache)):
            left.unlink()
        assert fetch_packages([small], Workspace(own, Store(own.cache)))[0].path.read_bytes() == b"fits"


def test_wheel_of_the_project(settings, store, tmp_path):
    """Its URL has its path there; no other path leads out of the project."""
    root = tmp_path / "project"
    (root / "my wheels").mkdir(parents=True)
    name = "some_package-1.0-py3-none-any.whl"
    (root / "my wheels" / name).write_bytes(DATA)
    target = Recipe.model_validate({"name": "t", "base": "debian:bookworm", "lock": "uv.lock", "root": root})
    inputs, work = Inputs(target, Environment(root / "e.yml", "", (), (), ())), Workspace(settings, store)
    (fetched,) = fetch_for(inputs, [package(f"builder://find-links/my%20wheels/{name}", manager="pip")], work)
    assert fetched.path == root / "my wheels" / name
    (tmp_path / name).write_bytes(DATA)
    for url in (f"builder://find-links/../{name}", f"builder://find-links/a/%2e%2e/%2e%2e/{name}"):
        with pytest.raises(FetchError, match="no find-links folder, page or index has it"):
            fetch_for(inputs, [package(url, manager="pip")], work)
