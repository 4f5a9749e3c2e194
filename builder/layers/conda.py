"""Conda packages as layer entries, linked as rattler and conda link them, with nothing run.

Both formats (``.conda`` and ``.tar.bz2``) are read through ``info/paths.json`` or its forerunners ``info/files``,
``info/has_prefix`` and ``info/no_link``. The build-time prefix is replaced in text files and NUL-padded in binary ones; noarch
python goes to the locked Python's site-packages, with entry points; ``conda-meta`` gets the record that conda and rattler read,
which depends on the package and its place alone. docs/conda.md says where this differs from conda.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import LayerError
from builder.layers.conda_archive import (
    CHUNK,
    PackageInfo,
    PathInfo,
    Spool,
    fault,
    is_safe,
    read_info,
    resolved,
    spooled,
)
from builder.layers.conda_environment import (
    Activation,
    activation_environment,
    history_entry,
    is_activation,
    link_order,
    python_context,
    recorded_url,
)
from builder.layers.conda_prefix import entry_point_shebang, replaced
from builder.layers.entry import Content, Entry, IndexEntry, Inline, LinkContext, PackageIndex, Range
from builder.model import Fetched

__all__ = [
    "Activation",
    "CondaReader",
    "activation_environment",
    "history_entry",
    "is_activation",
    "link_order",
    "python_context",
]

#: What a record takes over from ``info/index.json``: the package record's fields, as rattler knows them.
_RECORD_FIELDS = (
    "arch",
    "build",
    "build_number",
    "constrains",
    "depends",
    "features",
    "license",
    "license_family",
    "name",
    "noarch",
    "platform",
    "purls",
    "python_site_packages_path",
    "run_exports",
    "subdir",
    "timestamp",
    "track_features",
    "version",
)

_ENTRY_POINT = """\
{shebang}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {head}

if __name__ == '__main__':
\tsys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
\tsys.exit({function}())
"""


@dataclass(frozen=True, slots=True)
class _Content:
    """A regular file as it is installed; ``sha256`` is hex."""

    content: Content
    size: int
    sha256: str


class CondaReader:
    """Reads conda packages. Safe in any thread.

    Args:
        tmpdir: where a package's tar is unpacked while its layer is written (the package's unpacked size); nothing stays behind.
    """

    def __init__(self, tmpdir: Path) -> None:
        self._tmpdir = tmpdir

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`.

        Only the info part is read, except of a package from before paths.json, whose content is decompressed once. Hard links are
        listed as files, and symlinks without their targets: what they are stands in the content.
        """
        info = read_info(fetched)
        layout = _Layout(fetched, info, context)
        entries = [
            IndexEntry(path, p.kind, (p.size or 0) if p.kind == "file" else 0)
            for path, p in layout.paths.items()
        ]
        entries += [IndexEntry(e.path, "file", e.size) for e in layout.entry_points]
        entries.append(IndexEntry(layout.record_path, "file"))
        scripts = {
            layout.image(f"bin/.{fetched.package.name}-{action}.sh") for action in ("pre-link", "post-link")
        }
        menus = [p.path for p in info.paths if p.path.startswith("Menu/") and p.path.endswith(".json")]
        return PackageIndex(
            tuple(entries),
            tuple(e.path for e in entries if e.path in scripts),
            tuple(f"the menu entries of {m} are not installed: an image has no desktop" for m in menus),
        )

    def entries(
        self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`. The order is that of paths.json, then what linking makes."""
        with spooled(fetched, self._tmpdir) as spool:
            info = read_info(fetched, spool)
            layout = _Layout(fetched, info, context)
            members = {
                path: resolved(fetched, spool.members, item.path) for path, item in layout.paths.items()
            }
            layout.check_links({path: m.linkname for path, (_, m) in members.items() if m.issym()})
            digests: dict[str, tuple[str, int]] = {}
            names = Counter((members[path][0], item.placeholder) for path, item in layout.paths.items())
            shared: dict[tuple[str, str], _Content] = {}
            firsts: dict[tuple[str, str], Entry] = {}
            for path, item in layout.paths.items():
                name, member = members[path]
                key = (name, item.placeholder)
                if member.isdir():
                    entry = Entry(path, "dir", 0o755)
                elif member.issym():
                    entry = Entry(path, "symlink", 0o777, target=member.linkname)
                else:
                    content = shared.get(key) or self._content(fetched, item, member, spool, context.prefix)
                    digests[path] = content.sha256, content.size
                    entry = Entry(path, "file", member.mode & 0o777, content.size, content=content.content)
                    if names[key] > 1:
                        shared[key] = content
                        if path not in leave_out and (first := firsts.setdefault(key, entry)) is not entry:
                            entry = Entry(path, "hardlink", first.mode, target=first.path)
                if path not in leave_out:
                    yield entry
            for entry in layout.entry_points:
                if entry.path not in leave_out:
                    yield entry
            if layout.record_path not in leave_out:
                yield layout.record(digests)

    def _content(
        self, fetched: Fetched, item: PathInfo, member: tarfile.TarInfo, spool: Spool, prefix: str
    ) -> _Content:
        if not item.placeholder:
            # The archive's own hash was checked; a file is hashed here only when an old package does not say its hash.
            return _Content(
                Range(spool.path, member.offset_data), member.size, item.sha256 or _sha256(spool.read(member))
            )
        try:
            chunks = replaced(spool.read(member), item.placeholder, prefix, binary=item.binary)
        except ValueError as e:
            raise LayerError(
                f"{fetched.package.filename}: {item.path}: {e}", "choose a shorter conda.prefix in the recipe"
            ) from None
        if member.size <= CHUNK:
            data = b"".join(chunks)
            return _Content(Inline(data), len(data), hashlib.sha256(data).hexdigest())
        digest = hashlib.sha256()
        size = 0

        def watched() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        start = spool.append(watched())
        return _Content(Range(spool.path, start), size, digest.hexdigest())


def _sha256(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


class _Layout:
    """Where a package's files go, and what linking makes besides them.

    ``paths`` are by image path, in the order of paths.json, without those that linking writes itself.
    """

    def __init__(self, fetched: Fetched, info: PackageInfo, context: LinkContext) -> None:
        if info.noarch == "python" and not context.python:
            raise LayerError(
                f"{fetched.package.filename} is noarch python, and the environment has no python",
                "add python to the environment's conda dependencies",
            )
        self._fetched = fetched
        self._info = info
        self._context = context
        self._root = context.prefix.strip("/") + "/"
        name, version, build = (str(info.index.get(k, "")) for k in ("name", "version", "build"))
        stem = f"{name}-{version}-{build}"
        if "/" in stem or not is_safe(stem):
            raise fault(fetched, f"its info/index.json has an unsafe name, version or build: {stem!r}")
        self.record_path = self.image(f"conda-meta/{stem}.json")
        self.entry_points = [self._entry_point(*point) for point in info.entry_points]
        generated = {self.record_path, *(e.path for e in self.entry_points)}
        self.paths = {self.image(p.path): p for p in info.paths}
        for path in generated:
            self.paths.pop(path, None)
        folders = {folder for path in self.paths for folder in _parents(path)}
        for path in folders & self.paths.keys():
            if self.paths[path].kind != "dir":
                raise fault(
                    fetched, f"{self.paths[path].path!r} is a {self.paths[path].kind} and has files below it"
                )

    def image(self, path: str) -> str:
        """A path of the package as an image path."""
        if self._info.noarch == "python":
            if path.startswith("site-packages/"):
                path = self._context.site_packages + path[len("site-packages") :]
            elif path.startswith("python-scripts/"):
                path = "bin" + path[len("python-scripts") :]
        return self._root + path

    def check_links(self, links: Mapping[str, str]) -> None:
        """Refuses symlinks (image path to text) that lead out of the prefix, through one another too."""
        for path, target in links.items():
            if not is_safe(f"link-{target}".replace("/", "|")):  # NUL, or not UTF-8
                raise fault(self._fetched, f"{self.paths[path].path!r} is a link to {target!r}")
            if self._leaves(path, links):
                raise fault(
                    self._fetched,
                    f"{self.paths[path].path!r} is a link that leaves the environment: {target!r}",
                )

    def _leaves(self, path: str, links: Mapping[str, str]) -> bool:
        base = self._root.rstrip("/").split("/")
        here = list(base)
        todo = path[len(self._root) :].split("/")[::-1]
        followed = 0
        while todo:
            part = todo.pop()
            if part == "..":
                here.pop()
                if len(here) < len(base):
                    return True
            elif part not in ("", "."):
                here.append(part)
                target = links.get("/".join(here))
                if target is not None:
                    followed += 1
                    if followed > 40:  # the kernel's limit: goes round in circles, leads nowhere
                        return False
                    here.pop()
                    if target.startswith("/"):
                        if not (target + "/").startswith(f"/{self._root}"):
                            return True
                        here, target = list(base), target[len(self._root) :]
                    todo += target.split("/")[::-1]
        return False

    def _entry_point(self, command: str, module: str, function: str) -> Entry:
        text = _ENTRY_POINT.format(
            shebang=entry_point_shebang(self._context.interpreter),
            module=module,
            function=function,
            head=function.split(".")[0],
        )
        data = text.encode()
        return Entry(f"{self._root}bin/{command}", "file", 0o775, len(data), content=Inline(data))

    def record(self, digests: Mapping[str, tuple[str, int]]) -> Entry:
        """The package's ``conda-meta`` record. ``digests``: hash and size of the files as installed, by image path."""
        package, index = self._fetched.package, self._info.index
        paths = [self._path_record(path, item, digests.get(path)) for path, item in self.paths.items()]
        for e in self.entry_points:
            assert isinstance(e.content, Inline)
            digest = hashlib.sha256(e.content.data).hexdigest()
            paths.append(
                {
                    "_path": e.path[len(self._root) :],
                    "path_type": "unix_python_entry_point",
                    "sha256": digest,
                    "sha256_in_prefix": digest,
                    "size_in_bytes": e.size,
                }
            )
        url = recorded_url(package.url)
        record: dict[str, Any] = {k: index[k] for k in _RECORD_FIELDS if index.get(k) is not None}
        record |= {
            "channel": url.rsplit("/", 2)[0] + "/",
            "files": [p["_path"] for p in paths],
            "fn": package.filename,
            "link": {"source": "", "type": 3},
            "paths_data": {"paths": paths, "paths_version": 1},
            "requested_specs": [package.name] if package.name in self._context.requested else [],
            "size": self._fetched.size,
            "subdir": package.subdir or index.get("subdir", ""),
            "url": url,
        }
        if package.name in self._context.requested:
            record["requested_spec"] = package.name
        record |= {k: v for k, v in (("sha256", package.sha256), ("md5", package.md5)) if v}
        data = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        return Entry(self.record_path, "file", 0o644, len(data), content=Inline(data))

    def _path_record(self, path: str, item: PathInfo, installed: tuple[str, int] | None) -> dict[str, Any]:
        kinds = {"file": "hardlink", "symlink": "softlink", "dir": "directory"}
        out: dict[str, Any] = {"_path": path[len(self._root) :], "path_type": kinds[item.kind]}
        if item.no_link:
            out["no_link"] = True
        if item.sha256:
            out["sha256"] = item.sha256
        if installed:
            out["sha256_in_prefix"] = installed[0]
        size = installed[1] if installed else item.size
        if size is not None:
            out["size_in_bytes"] = size
        if item.placeholder:
            out |= {"file_mode": "binary" if item.binary else "text", "prefix_placeholder": item.placeholder}
        return out


def _parents(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)
