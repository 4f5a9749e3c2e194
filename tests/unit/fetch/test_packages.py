"""Fetching, against a real HTTP server on loopback that misbehaves as told."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import builder.fetch.packages
from builder.errors import FetchError, HashMismatch, SpaceError
from builder.fetch.packages import fetch_packages, head_sizes
from builder.model import LockedPackage
from builder.settings import Settings
from builder.store.blobs import Store
from tests.support.disk import small_disk

ROOT = Path(__file__).parents[3]
DATA = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(20_000))  # 640 kB that no two places share


class Server:
    """``files`` by path; ``faults`` are used up one per GET of a path; ``log`` holds (method, path, Range, Authorization)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[object]] = defaultdict(list)
        self.log: list[tuple[str, str, str, str]] = []
        self.ranges = True
        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.httpd.daemon_threads = True
        self.scheme = "http"
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.httpd.server_port}"

    def put(self, path: str, data: bytes = DATA) -> str:
        self.files[path] = data
        return self.url + path

    def gets(self, path: str) -> list[str]:
        return [r for m, p, r, _ in self.log if m == "GET" and p == path]

    def _handler(server):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None: ...

            def do_HEAD(self) -> None:
                self.serve(False)

            def do_GET(self) -> None:
                self.serve(True)

            def serve(self, body: bool) -> None:
                path = self.path.partition("?")[0]
                wanted, auth = self.headers.get("Range", ""), self.headers.get("Authorization", "")
                server.log.append((self.command, path, wanted, auth))
                data = server.files.get(path)
                fault = server.faults[path].pop(0) if body and server.faults[path] else None
                if isinstance(fault, int):
                    self.answer(fault, b"no")
                    return
                if isinstance(fault, tuple) and fault[0] == "redirect":
                    self.answer(302, b"", Location=fault[1])
                    return
                if isinstance(fault, bytes):
                    data = fault
                if data is None:
                    self.answer(404, b"gone")
                    return
                start = int(m[1]) if server.ranges and (m := re.fullmatch(r"bytes=(\d+)-", wanted)) else 0
                if fault == "other range":
                    start = 7
                if start >= len(data) and start:
                    self.answer(416, b"")
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                rest = data[start:] if body else b""
                if isinstance(fault, tuple) and fault[0] == "cut":
                    self.wfile.write(rest[: fault[1]])
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if isinstance(fault, tuple) and fault[0] == "slow":
                    for at in range(0, len(rest), 1 << 15):
                        self.wfile.write(rest[at : at + (1 << 15)])
                        self.wfile.flush()
                        time.sleep(fault[1])
                    return
                self.wfile.write(rest)

            def answer(self, code: int, data: bytes, **headers: str) -> None:
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # the client went away
                    pass

        return Handler


@pytest.fixture
def server():
    server = Server()
    yield server
    server.httpd.shutdown()
    server.httpd.server_close()


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Nothing of this machine's pip, netrc or proxies decides."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(builder.fetch.packages, "_pause", lambda error, tries: 0.01)


@pytest.fixture
def settings(tmp_path):
    return Settings.from_environment({"HOME": str(tmp_path), "BUILDER_CACHE": str(tmp_path / "cache")})


@pytest.fixture
def store(settings):
    return Store(settings.cache)


def package(url: str, data: bytes = DATA, manager="conda", **values) -> LockedPackage:
    values.setdefault("sha256", hashlib.sha256(data).hexdigest())
    return LockedPackage("some-package", "1.0", manager, "linux-64", url, **values)


def offline(settings: Settings) -> Settings:
    return Settings(settings.cache, settings.tmpdir, settings.jobs, offline=True, mirrors=settings.mirrors)


def mirrored(settings: Settings, *mirrors: tuple[str, str]) -> Settings:
    return Settings(settings.cache, settings.tmpdir, settings.jobs, mirrors=mirrors)


def partials(store: Store) -> list[Path]:
    return list((store.root / "partial").glob("*"))


class Notes:
    def __init__(self) -> None:
        self.bytes, self.warnings = 0, []

    def start(self, task, total=None, unit="B"): ...
    def advance(self, task, amount):
        self.bytes += amount

    def finish(self, task, summary=""): ...
    def note(self, message): ...
    def warn(self, message):
        self.warnings.append(message)


# the main road


def test_packages_come_in_the_order_given_and_only_once(server, settings, store):
    packages = [
        package(server.put(f"/c/linux-64/p-{i}-0.conda", b"%d" % i * 1000), b"%d" % i * 1000)
        for i in range(20)
    ]
    fetched = fetch_packages(packages, settings, store)
    assert [f.package for f in fetched] == packages
    assert [f.path.read_bytes()[:1000] for f in fetched] == [(b"%d" % i * 1000)[:1000] for i in range(20)]
    assert all(f.path == store.path(f.package.key) and f.size == f.path.stat().st_size for f in fetched)
    assert partials(store) == []
    asked = len(server.log)
    assert fetch_packages(packages, settings, store) == fetched
    assert len(server.log) == asked == 20
    assert fetch_packages(packages, offline(settings), store) == fetched


def test_what_is_known_is_found_without_hashing_and_fast(server, settings, store, monkeypatch):
    datas = [b"%d" % i * 100 for i in range(300)]
    packages = [package(f"{server.url}/{i}.conda", data) for i, data in enumerate(datas)]
    for data in datas:
        store.add(data)
    monkeypatch.setattr(
        "builder.store.fingerprints.sha256_file", lambda path: pytest.fail(f"{path} was hashed again")
    )
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert len(fetch_packages(packages, settings, store)) == 300
        times.append(time.perf_counter() - start)
    assert min(times) < 0.25, f"{min(times):.3f} s for 300 known packages"  # 0.03 s on an idle core
    assert server.log == []


def test_redirects_are_followed(server, settings, store):
    url = server.url + "/old"
    server.files["/old"] = b""
    server.faults["/old"] = [("redirect", server.put("/new"))]
    assert fetch_packages([package(url)], settings, store)[0].path.read_bytes() == DATA


def test_a_package_locked_by_md5_is_stored_by_sha256_and_found_again(server, settings, store):
    md5 = hashlib.md5(DATA).hexdigest()
    locked = package(server.put("/p-1-0.tar.bz2"), sha256=None, md5=md5)
    first = fetch_packages([locked], settings, store)[0]
    assert first.path == store.path(f"sha256:{hashlib.sha256(DATA).hexdigest()}")
    assert fetch_packages([locked], settings, store)[0].path == first.path
    assert len(server.log) == 1
    with pytest.raises(HashMismatch, match="md5:" + md5):
        fetch_packages([package(server.put("/q-1-0.tar.bz2"), sha256=None, md5="0" * 32)], settings, store)


def test_variables_in_a_url_are_put_in_but_not_shown(server, settings, store, monkeypatch):
    monkeypatch.setenv("CHANNEL_TOKEN", "s3cr3t")
    server.put("/t/s3cr3t/c/p-1-0.conda")
    assert fetch_packages([package(server.url + "/t/$CHANNEL_TOKEN/c/p-1-0.conda")], settings, store)
    with pytest.raises(FetchError) as e:
        fetch_packages([package(server.url + "/get/$CHANNEL_TOKEN/p-2-0.conda", b"x")], settings, store)
    assert "s3cr3t" not in str(e.value) and "/get/$CHANNEL_TOKEN/p-2-0.conda: HTTP 404" in str(e.value)


# faults on the way


def test_a_connection_cut_in_the_middle_is_resumed_where_it_ended(server, settings, store, quick):
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [("cut", 100_000), ("cut", 200_000)]
    notes = Notes()
    assert fetch_packages([package(url)], settings, store, reporter=notes)[0].path.read_bytes() == DATA
    first, second, third = server.gets("/p.conda")
    assert (first, second, third) == ("", "bytes=100000-", "bytes=300000-")
    assert notes.bytes == len(DATA)  # not a byte twice


def test_a_server_without_ranges_is_asked_for_all_of_it(server, settings, store, quick):
    url = server.put("/p.conda")
    server.ranges = False
    server.faults["/p.conda"] = [("cut", 100_000)]
    assert fetch_packages([package(url)], settings, store)[0].path.read_bytes() == DATA
    assert server.gets("/p.conda") == ["", "bytes=100000-"]


def test_a_server_that_answers_with_another_range_is_not_believed(server, settings, store, quick):
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [("cut", 100_000), "other range"]
    assert fetch_packages([package(url)], settings, store)[0].path.read_bytes() == DATA
    assert server.gets("/p.conda") == ["", "bytes=100000-", ""]


def test_a_partial_file_that_is_whole_or_too_long_is_settled(server, settings, store):
    url = server.put("/p.conda")
    locked = package(url)
    for content in (DATA, DATA + b"more", b"\0" * len(DATA), b"\0" * 1000):
        store.drop(locked.key)
        (store.root / "partial").mkdir(parents=True, exist_ok=True)
        (store.root / "partial" / locked.key.replace(":", "-")).write_bytes(content)
        assert fetch_packages([locked], settings, store)[0].path.read_bytes() == DATA
        assert partials(store) == []


def test_errors_that_pass_are_waited_out(server, settings, store, quick):
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [500, 503, 429]
    assert fetch_packages([package(url)], settings, store)[0].path.read_bytes() == DATA
    assert len(server.log) == 4


def test_a_server_in_trouble_is_named_and_does_not_count_as_down(server, settings, store, quick):
    bad, good = server.put("/bad.conda"), server.put("/good.conda", b"good")
    server.faults["/bad.conda"] = [503] * 20
    with pytest.raises(FetchError, match=r"some-package 1.0 could not be fetched: .*/bad.conda: .*HTTP 503"):
        fetch_packages([package(bad)], settings, store)
    assert len(server.log) == 4
    assert fetch_packages([package(good, b"good")], settings, store)


def test_the_pause_before_another_try_grows_and_follows_the_server():
    import httpx

    request = httpx.Request("GET", "http://localhost/")

    def asked(value: str) -> httpx.HTTPStatusError:
        return httpx.HTTPStatusError(
            "", request=request, response=httpx.Response(503, headers={"Retry-After": value})
        )

    assert builder.fetch.packages._pause(asked("7"), 1) == 7
    assert builder.fetch.packages._pause(asked("86400"), 1) == 60
    plain = [builder.fetch.packages._pause(httpx.ReadError(""), tries) for tries in (1, 2, 3)]
    assert (
        plain == sorted(plain)
        and plain[0] == 0.5
        and builder.fetch.packages._pause(asked("Thu, 01 Jan"), 1) == 0.5
    )


def test_wrong_bytes_once_are_deleted_and_asked_for_again(server, settings, store):
    url = server.put("/p.conda")
    server.faults["/p.conda"] = [b"something else"]
    notes = Notes()
    assert fetch_packages([package(url)], settings, store, reporter=notes)[0].path.read_bytes() == DATA
    assert "/p.conda gave sha256:" in notes.warnings[0] and "deleted" in notes.warnings[0]


def test_wrong_bytes_twice_are_refused_with_everything_named(server, settings, store):
    url = server.put("/p-1-0.conda", b"something else").replace("http://", "http://joe:pa55word@")
    locked = package(url)
    with pytest.raises(HashMismatch) as e:
        fetch_packages([locked], settings, store)
    text = str(e.value)
    assert "p-1-0.conda" in text and server.url + "/p-1-0.conda" in text
    assert locked.key in text and hashlib.sha256(b"something else").hexdigest() in text
    assert "pa55word" not in text and "joe" not in text and "lock again" in e.value.hint
    assert len(server.log) == 2 and partials(store) == [] and store.get(locked.key) is None


@pytest.mark.parametrize("code", [404, 410])
def test_gone_with_no_mirror(server, settings, store, code):
    url = server.put("/p-1-0.conda")
    server.faults["/p-1-0.conda"] = [code]
    with pytest.raises(
        FetchError, match=rf"some-package 1.0 could not be fetched: .*/p-1-0.conda: HTTP {code}"
    ) as e:
        fetch_packages([package(url)], settings, store)
    assert "BUILDER_MIRRORS" in e.value.hint and len(server.log) == 1


def test_one_that_is_gone_does_not_wait_for_the_slow_ones(server, settings, store):
    slow = [package(server.put(f"/slow{i}.conda", DATA + b"%d" % i), DATA + b"%d" % i) for i in range(3)]
    for i in range(3):
        server.faults[f"/slow{i}.conda"] = [("slow", 0.5)]  # 10 s each
    start = time.monotonic()
    with pytest.raises(FetchError, match="HTTP 404"):
        fetch_packages([*slow, package(server.url + "/gone.conda")], settings, store)
    assert time.monotonic() - start < 5
    assert partials(store)  # kept, to go on from


def test_credentials_go_to_the_server_and_into_no_message(server, settings, store, monkeypatch, tmp_path):
    server.put("/p.conda")
    fetch_packages([package(server.url.replace("//", "//joe:pa55%20word@") + "/p.conda")], settings, store)
    assert server.log[-1][3] == "Basic " + base64.b64encode(b"joe:pa55 word").decode()
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password hush\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fetch_packages([package(server.put("/q.conda", b"q"), b"q")], settings, store)
    assert server.log[-1][3] == "Basic " + base64.b64encode(b"ann:hush").decode()
    server.faults["/r.conda"] = [403]
    with pytest.raises(FetchError, match="HTTP 403") as e:
        url = server.put("/r.conda", b"r").replace("//", "//joe:pa55word@") + "?key=pa55word"
        fetch_packages([package(url, b"r")], settings, store)
    assert "pa55word" not in str(e.value) and "netrc" in e.value.hint


@pytest.mark.parametrize(
    "url", ["git+https://127.0.0.1/x.git", "s3://bucket/p-1-0.conda", "http://127.0.0.1:99999/p.conda"]
)
def test_urls_that_cannot_be_fetched_are_an_error_not_a_traceback(settings, store, quick, url):
    with pytest.raises(FetchError, match=r"some-package 1\.0 could not be fetched"):
        fetch_packages([package(url)], settings, store)


def test_a_certificate_nobody_vouches_for(server, settings, store, tmp_path, monkeypatch, part_missing):
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
    with pytest.raises(FetchError, match="CERTIFICATE_VERIFY_FAILED") as e:
        fetch_packages([locked], settings, store)
    assert "SSL_CERT_FILE" in e.value.hint
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\ncert = {cert}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    assert fetch_packages([locked], settings, store)[0].path.read_bytes() == DATA
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(FetchError, match=r"SSL_CERT_FILE names .*missing\.pem"):
        fetch_packages([package(server.url + "/q.conda", b"q")], settings, store)


# offline, mirrors, find-links


def test_offline_says_so_and_asks_nobody(server, settings, store):
    with pytest.raises(FetchError, match="offline") as e:
        fetch_packages([package(server.put("/p.conda"))], offline(settings), store)
    assert "BUILDER_MIRRORS" in e.value.hint and server.log == []


def test_an_unreachable_host_is_asked_once_and_a_mirror_serves(server, settings, store, quick):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    packages = [package(f"{dead}/conda-forge/linux-64/p{i}-1-0.conda", b"%d" % i) for i in range(3)]
    with pytest.raises(FetchError, match=r"ConnectError|does not answer") as e:
        fetch_packages(packages, settings, store)
    assert "BUILDER_MIRRORS" in e.value.hint
    for i in range(3):
        server.put(f"/mirror/linux-64/p{i}-1-0.conda", b"%d" % i)
    own = mirrored(
        settings, (f"{dead}/conda-forge", f"{server.url}/mirror/"), (dead, "http://nowhere.invalid")
    )
    assert [f.path.read_bytes() for f in fetch_packages(packages, own, store)] == [b"0", b"1", b"2"]


def test_a_mirror_prefix_ends_at_a_slash(server, settings, store, tmp_path):
    (tmp_path / "m" / "-extra").mkdir(parents=True)
    (tmp_path / "m" / "-extra" / "p.conda").write_bytes(b"wrong place")
    own = mirrored(settings, (f"{server.url}/forge", str(tmp_path / "m")))
    assert fetch_packages([package(server.put("/forge-extra/p.conda"))], own, store)[0].path == store.path(
        package("").key
    )


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_mirror_may_be_a_folder_and_its_files_stay_where_they_are(settings, store, tmp_path, form):
    file = tmp_path / "mirror" / "linux-64" / "p 1+2.conda"
    file.parent.mkdir(parents=True)
    file.write_bytes(DATA)
    own = mirrored(settings, ("https://conda.anaconda.org/x", form.format(tmp_path / "mirror")))
    locked = package("https://conda.anaconda.org/x/linux-64/p%201+2.conda")
    for which in (own, offline(own)):
        assert fetch_packages([locked], which, store)[0].path == file
    assert not store.path(locked.key).exists()


def test_after_a_mirror_that_has_something_else_the_url_itself_is_asked(server, settings, store):
    server.put("/mirror/p.conda", b"stale")
    own = mirrored(settings, (f"{server.url}/main", f"{server.url}/mirror"))
    assert fetch_packages([package(server.put("/main/p.conda"))], own, store)[0].path.read_bytes() == DATA
    assert len(server.gets("/mirror/p.conda")) == 2


def test_local_files_are_used_in_place_and_hashed_once(settings, store, tmp_path, monkeypatch):
    wheel = tmp_path / "dist dir" / "some_package-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(DATA)
    locked = package(wheel.as_uri(), manager="pip")
    assert fetch_packages([locked], settings, store)[0].path == wheel
    with monkeypatch.context() as m:
        m.setattr("builder.store.fingerprints.sha256_file", lambda path: pytest.fail("hashed again"))
        assert fetch_packages([locked], settings, store)[0].path == wheel
    wheel.write_bytes(DATA + b"!")
    with pytest.raises(HashMismatch, match=r"some_package.*is not what the lock says") as e:
        fetch_packages([locked], settings, store)
    assert locked.key in str(e.value)
    wheel.unlink()
    with pytest.raises(FetchError, match="no such file"):
        fetch_packages([locked], settings, store)


def test_find_links_give_wheels_by_name_whatever_the_url(server, settings, store, tmp_path, monkeypatch):
    name = "some_package-1.0+cpu-py3-none-any.whl"
    stale, right = tmp_path / "stale", tmp_path / "right"
    for folder, data in ((stale, b"another build"), (right, DATA)):
        folder.mkdir()
        (folder / name).write_bytes(data)
    gone = package(f"{server.url}/gone/{name.replace('+', '%2B')}", manager="pip")
    pseudo = package(f"builder://find-links/{name}", manager="pip")
    for locked in (gone, pseudo):
        fetched = fetch_packages([locked], settings, store, find_links=[str(stale), right.as_uri()])
        assert fetched[0].path == right / name
    monkeypatch.setenv("PIP_FIND_LINKS", f"{stale} {right}")
    assert fetch_packages([gone], offline(settings), store)[0].path == right / name
    monkeypatch.setenv("PIP_FIND_LINKS", str(stale))
    with pytest.raises(HashMismatch, match="stale"):
        fetch_packages([pseudo], settings, store)
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(FetchError) as e:
        fetch_packages([pseudo], settings, store)
    assert "PIP_FIND_LINKS" in e.value.hint
    conda = package(f"{server.url}/gone/{name}")
    with pytest.raises(FetchError):  # conda packages do not come from pip's places
        fetch_packages([conda], settings, store, find_links=[str(right)])


@pytest.mark.parametrize("kind", ["page", "index", "file page", "direct"])
def test_find_links_may_be_web_pages_and_indexes(server, settings, store, tmp_path, monkeypatch, kind):
    name = "some_package-1.0-py3-none-any.whl"
    server.put("/files/" + name)
    page = f'<html><a  class="x" href="{server.url}/files/{name}#sha256=00">{name}</a><a href="/other.whl">o</a></html>'.encode()
    server.put("/links.html", page)
    server.put("/simple/some-package/", page)
    (tmp_path / "links.html").write_text(f'<a href="sub/{name}">w</a>')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / name).write_bytes(DATA)
    links: list[str] = []
    match kind:
        case "page":
            links = [f"{server.url}/links.html"]
        case "index":
            monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        case "file page":
            links = [str(tmp_path / "links.html")]
        case "direct":
            links = [f"{server.url}/files/{name}"]
    locked = package(f"{server.url}/gone/{name}", manager="pip")
    assert fetch_packages([locked], settings, store, find_links=links)[0].path.read_bytes() == DATA


def test_a_name_in_the_embedded_channel_cannot_lead_out_of_it(settings, store):
    with pytest.raises(FetchError, match="names no package of the Debian channel"):
        fetch_packages([package("builder://debian/linux-64/../../../../etc/passwd")], settings, store)


def test_head_sizes(server, settings, store, tmp_path):
    cached, local = package("https://nowhere.invalid/a.conda", b"cached"), tmp_path / "l-1-py3-none-any.whl"
    store.add(b"cached")
    local.write_bytes(b"local!!")
    here = package(local.as_uri(), b"local!!", manager="pip")
    there = package(server.put("/there.conda"))
    unknown = package(server.url + "/unknown.conda", b"?")
    userns = package("builder://debian/noarch/pip-1-0.conda", b"!")
    sizes = head_sizes([cached, here, there, unknown, userns], settings, store)
    assert sizes == {cached.key: 6, here.key: 7, there.key: len(DATA), unknown.key: None, userns.key: None}
    assert not (settings.cache / "channels").exists() and {m for m, *_ in server.log} == {"HEAD"}
    assert head_sizes([there], offline(settings), store) == {there.key: None}


# damage, kills, company


def test_a_blob_edited_by_hand_is_fetched_again(server, settings, store):
    locked = package(server.put("/p.conda"))
    path = fetch_packages([locked], settings, store)[0].path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert fetch_packages([locked], settings, store)[0].path.read_bytes() == DATA
    assert len(server.log) == 2


SCRIPT = """
import sys
from pathlib import Path
from builder.fetch.packages import fetch_packages
from builder.model import LockedPackage
from builder.settings import Settings
from builder.store.blobs import Store
cache, url, sha256 = sys.argv[1:]
settings = Settings.from_environment({"HOME": "/nonexistent", "BUILDER_CACHE": cache})
p = LockedPackage("p", "1", "conda", "linux-64", url, sha256)
print(fetch_packages([p], settings, Store(settings.cache))[0].path)
"""


def start(settings: Settings, locked: LockedPackage) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(settings.cache), locked.url, str(locked.sha256)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_is_gone_on_with(server, settings, store, how):
    locked = package(server.put("/p.conda"))
    server.faults["/p.conda"] = [("slow", 0.3)]
    process = start(settings, locked)
    wait_for(lambda: any(p.stat().st_size >= 1 << 16 for p in partials(store)))
    process.send_signal(how)
    assert process.wait(20) != 0
    assert not store.path(locked.key).exists()
    have = partials(store)[0].stat().st_size
    assert 0 < have < len(DATA)
    assert fetch_packages([locked], settings, store)[0].path.read_bytes() == DATA
    assert server.gets("/p.conda") == ["", f"bytes={have}-"] and partials(store) == []


def test_two_processes_fetch_a_package_once(server, settings, store):
    locked = package(server.put("/p.conda"))
    server.faults["/p.conda"] = [("slow", 0.1)]
    processes = [start(settings, locked) for _ in range(2)]
    paths = [p.communicate(timeout=60)[0].strip() for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    assert paths == [str(store.path(locked.key))] * 2 and len(server.gets("/p.conda")) == 1


@pytest.mark.root
@pytest.mark.parametrize("announced", [True, False])
def test_a_full_disk_is_named(server, settings, tmp_path, monkeypatch, announced):
    with small_disk(tmp_path / "small", "400k") as disk:
        own = Settings(disk / "cache", tmp_path / "tmp", 1)
        if not announced:  # as when another process fills the disk meanwhile
            monkeypatch.setattr(builder.fetch.packages, "require_space", lambda *args: None)
        with pytest.raises(SpaceError, match=str(own.cache)) as e:
            fetch_packages([package(server.put("/p.conda"))], own, Store(own.cache))
        assert "BUILDER_CACHE" in e.value.hint
        small = package(server.put("/small.conda", b"fits"), b"fits")
        for left in partials(Store(own.cache)):
            left.unlink()
        assert fetch_packages([small], own, Store(own.cache))[0].path.read_bytes() == b"fits"
