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
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import zstandard

#: The placeholder for the prefix in the files of a package; 255 characters long, as conda-build writes it.
PLACEHOLDER = ("/opt/build/" + "placehold_" * 25)[:255]
#: The build time of packages unless a test sets one: 2024-05-01T00:00:00Z, in milliseconds.
TIMESTAMP = 1714521600000


@dataclass(frozen=True)
class PackageOptions:
    """What a test may choose about a conda package."""

    constrains: Sequence[str] = ()
    noarch: Literal["python", "generic"] | None = None
    entry_points: Sequence[str] = ()
    prefix_files: Mapping[str, Literal["text", "binary"]] | None = None
    symlinks: Mapping[str, str] | None = None
    subdir: str = "linux-64"
    timestamp: int | None = TIMESTAMP
    build_number: int = 0
    extension: Literal[".conda", ".tar.bz2"] = ".conda"
    index: Mapping[str, Any] | None = None


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
        prefix_files: those of ``files`` that contain :data:`PLACEHOLDER`, and how it is replaced.
        entry_points: for ``noarch="python"``: ``hello = hello:main``.
        index: replaces or adds keys of ``info/index.json`` (``track_features``,
        ``python_site_packages_path``...).
    """
    options = PackageOptions(**given)
    subdir = "noarch" if options.noarch else options.subdir
    content = {path: data.encode() if isinstance(data, str) else data for path, data in (files or {}).items()}
    links = dict(options.symlinks or {})
    prefixed = dict(options.prefix_files or {})
    for path in prefixed:
        assert PLACEHOLDER.encode() in content[path], f"{path} contains no placeholder"
    paths = []
    for path in sorted({*content, *links}):
        if path in links:
            data = content.get(str((Path(path).parent / links[path]).as_posix()), b"")
        else:
            data = content[path]
        entry: dict[str, Any] = {
            "_path": path,
            "path_type": "softlink" if path in links else "hardlink",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size_in_bytes": len(data),
        }
        if path in prefixed:
            entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": prefixed[path]}
        paths.append(entry)
    record: dict[str, Any] = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": options.build_number,
        "depends": list(depends),
        "subdir": subdir,
        "arch": "x86_64" if subdir == "linux-64" else None,
        "platform": None if options.noarch else "linux",
    }
    if options.constrains:
        record["constrains"] = list(options.constrains)
    if options.noarch:
        record["noarch"] = options.noarch
    if options.timestamp is not None:
        record["timestamp"] = options.timestamp
    record |= options.index or {}
    info = {
        "info/index.json": _json(record),
        "info/files": "".join(f"{p['_path']}\n" for p in paths).encode(),
        "info/paths.json": _json({"paths": paths, "paths_version": 1}),
        "info/about.json": _json({"summary": f"{name}, made for a test", "license": "BSD-3-Clause"}),
    }
    if options.noarch == "python":
        link = {
            "type": "python",
            **({"entry_points": list(options.entry_points)} if options.entry_points else {}),
        }
        info["info/link.json"] = _json({"noarch": link, "package_metadata_version": 1})
    if prefixed:
        info["info/has_prefix"] = "".join(
            f"{PLACEHOLDER} {mode} {path}\n" for path, mode in sorted(prefixed.items())
        ).encode()

    target = folder / subdir / f"{name}-{version}-{build}{options.extension}"
    target.parent.mkdir(parents=True, exist_ok=True)
    if options.extension == ".tar.bz2":
        target.write_bytes(_tar({**info, **content}, links, "bz2"))
        return target
    stem = target.name.removesuffix(".conda")
    compress = zstandard.ZstdCompressor(level=3).compress
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for member, data in (
            ("metadata.json", b'{"conda_pkg_format_version": 2}'),
            (f"pkg-{stem}.tar.zst", compress(_tar(content, links))),
            (f"info-{stem}.tar.zst", compress(_tar(info, {}))),
        ):
            out.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
    return target


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _tar(files: Mapping[str, bytes], links: Mapping[str, str], compression: str = "") -> bytes:
    out = io.BytesIO()
    mode: Any = f"w:{compression}" if compression else "w"
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.GNU_FORMAT) as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            member.mode = (
                0o755 if path.startswith(("bin/", "python-scripts/")) or data.startswith(b"#!") else 0o644
            )
            tar.addfile(member, io.BytesIO(data))
        for path, aim in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, aim, 0o777
            tar.addfile(member)
    return out.getvalue()


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
        for record in (*data["packages"].values(), *data["packages.conda"].values()):
            record.pop("indexed_timestamp", None)
        repodata.write_text(json.dumps(data, sort_keys=True))
    return folder


@dataclass
class Server:
    """A folder served over http. ``requests`` are the paths of GET requests, in order."""

    url: str
    requests: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.url


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """Serves a folder over http on loopback, on a free port."""
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
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
