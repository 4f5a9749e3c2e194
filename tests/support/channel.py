"""Small real conda channels for tests: written packages, indexed by rattler, served over http on loopback.

make_package(channel, "hello", "1.0", files={"bin/hello": "#!/bin/sh\\necho hello\\n"}, depends=["python
>=3.11"]) index_channel(channel)
with serve(channel) as server:
    ...  # server.url is "http://127.0.0.1:PORT", server.requests are the requested paths
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any

from tests.support.condapackage import PLACEHOLDER, Member, pack, symlink

#: The build time of packages unless a test sets one: 2024-05-01T00:00:00Z, in milliseconds.
TIMESTAMP = 1714521600000


def make_package(
    folder: Path,
    name: str,
    version: str = "1.0",
    build: str = "0",
    files: Mapping[str, str | bytes] | None = None,
    depends: Sequence[str] = (),
    **given: Any,
) -> Path:
    """Writes one conda package into ``folder/<subdir>/`` and returns its path. The same arguments write the
    same bytes.

    Files under ``bin/`` (or with a shebang line) are executable.

    Args:
        files: contents by path; for ``noarch="python"`` the paths begin with ``site-packages/`` or
        ``python-scripts/``.
        given: as in :class:`tests.support.condapackage.PackOptions`, or one of these:
            ``prefix_files``: those of ``files`` with :data:`PLACEHOLDER`, and how it is replaced.
            ``symlinks``: texts by path. ``timestamp``: of the build; None for a package without.
    """
    prefix_files, symlinks = given.pop("prefix_files", {}), given.pop("symlinks", {})
    index = {"timestamp": given.pop("timestamp", TIMESTAMP), **given.pop("index", {})}
    members = []
    for path, text in sorted((files or {}).items()):
        data = text.encode() if isinstance(text, str) else text
        runs = path.startswith(("bin/", "python-scripts/")) or data.startswith(b"#!")
        prefix = prefix_files.get(path, "")
        assert not prefix or PLACEHOLDER.encode() in data, f"{path} contains no placeholder"
        members.append(Member(path, data, 0o755 if runs else 0o644, prefix=prefix))
    members += [symlink(path, target) for path, target in sorted(symlinks.items())]
    return pack(folder, name, members, version, build, depends, index=index, **given)


def index_channel(folder: Path) -> Path:
    """Writes ``repodata.json`` of a channel's subdirs (always ``linux-64`` and ``noarch``); returns the
    folder.
    """
    from rattler.index import index_fs

    for subdir in ("linux-64", "noarch"):
        (folder / subdir).mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(folder, force=True, write_shards=False, write_zst=False))
    # rattler's exclude_newer uses the time of indexing if there is one; tests set the time of the build.
    for repodata in folder.glob("*/repodata.json"):
        data = json.loads(repodata.read_text())
        for records in (data["packages"], data["packages.conda"], *data.get("v3", {}).values()):
            for record in records.values():
                record.pop("indexed_timestamp", None)
        repodata.write_text(json.dumps(data, sort_keys=True))
    return folder


def simple_index(folder: Path, *wheels: Path) -> Path:
    """A static PEP 503 index of these wheels."""
    for path in wheels:
        page = folder / re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower() / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / path.name).write_bytes(path.read_bytes())
        old = page.read_text() if page.exists() else ""
        page.write_text(f'{old}<a href="../{path.name}#sha256={digest}">{path.name}</a>\n')
    return folder


@dataclass
class Server:
    """A folder served over http. ``requests`` are the paths of GET requests, in order."""

    url: str
    requests: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.url


@contextmanager
def running(server: BaseServer) -> Iterator[None]:
    """Lets a server answer in a thread until the end of the context."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serve(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serves a folder over http, or https, on loopback, on a free port."""
    server = Server("")

    class Handler(SimpleHTTPRequestHandler):
        disable_nagle_algorithm = True  # headers and body are two writes: no 40 ms between them
        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            if self.command == "GET":
                server.requests.append(self.path)

        def log_message(self, format: str, *args: Any) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    httpd.daemon_threads = True
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{httpd.server_port}"
    with running(httpd):
        yield server
