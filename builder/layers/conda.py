"""Conda packages as layer entries, linked as conda and rattler link them, with nothing run.

Both formats (``.conda``: a zip of two zstd tars; ``.tar.bz2``) are read through ``info/paths.json`` or its forerunners ``info/files``,
``info/has_prefix`` and ``info/no_link``. The build-time prefix is replaced in text files, and NUL-padded in binary ones;
noarch python goes to the locked Python's site-packages, with entry points; ``conda-meta`` gets the record that conda expects, without
time stamps or paths of the machine that built the image.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import zstandard

from builder.errors import BuilderError, LayerError
from builder.layers.entry import Entry, IndexEntry, Inline, LinkContext, PackageIndex, Range
from builder.layers.tar import check_path
from builder.model import Fetched, LockedPackage
from builder.store import space_errors

_DEFAULT_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"  # info/has_prefix without one means this, as in conda
_SCRIPT_NAMES = ("pre-link", "post-link")
_CHUNK = 1 << 20
_MAX_SHEBANG = 127

PathType = Literal["hardlink", "softlink", "directory"]


@dataclass(frozen=True, slots=True)
class _PathInfo:
    """One line of paths.json."""

    path: str
    kind: PathType
    size: int
    sha256: str
    no_link: bool
    placeholder: str
    binary: bool


@dataclass(frozen=True)
class _Info:
    """A package's metadata, as far as linking needs it."""

    index: Mapping[str, Any]
    paths: tuple[_PathInfo, ...]
    noarch: str
    entry_points: tuple[str, ...]
    site_packages: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


class CondaReader:
    """Reads conda packages. Safe in any thread.

    Args:
        tmpdir: where a package's tar is unpacked while its layer is written; the file has no name and leaves nothing behind.
    """

    def __init__(self, tmpdir: Path) -> None:
        self._tmpdir = tmpdir

    def index(self, fetched: Fetched, context: LinkContext) -> PackageIndex:
        """See :class:`builder.layers.entry.PackageReader`. Of a ``.conda`` only the info tar is read."""
        info = _read_info(fetched)
        place = _Placer(fetched, info, context)
        kinds: dict[PathType, Literal["file", "symlink", "dir"]] = {"hardlink": "file", "softlink": "symlink", "directory": "dir"}
        entries = [IndexEntry(place.image(p.path), kinds[p.kind], p.size if p.kind == "hardlink" else 0) for p in info.paths]
        made = place.entry_points()
        entries += [IndexEntry(e.path, "file", e.size) for e in made]
        entries.append(IndexEntry(place.record_path, "file", 0))
        scripts = tuple(
            place.image(p.path) for p in info.paths if p.path in {f"bin/.{fetched.package.name}-{s}.sh" for s in _SCRIPT_NAMES}
        )
        notes = tuple(f"menu {p.path} is not installed" for p in info.paths if p.path.startswith("Menu/") and p.path.endswith(".json"))
        return PackageIndex(tuple(entries), scripts, notes)

    def entries(self, fetched: Fetched, context: LinkContext, leave_out: frozenset[str] = frozenset()) -> Iterator[Entry]:
        """See :class:`builder.layers.entry.PackageReader`."""
        info = _read_info(fetched)
        place = _Placer(fetched, info, context)
        known = {p.path: p for p in info.paths}
        hashes: dict[str, tuple[str, int]] = {}
        given: dict[str, Entry] = {}  # regular files so far, by name in the package: what hard links repeat
        missing = set(known)
        with _package_tar(fetched, self._tmpdir) as (tar, source):
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in known or member.isdir():
                    if name in known:
                        missing.discard(name)
                        yield Entry(place.image(name), "dir", 0o755)
                    continue
                missing.discard(name)
                entry = _entry(fetched, member, known[name], place, source, given, hashes)
                given[name] = entry
                if entry.path in leave_out:
                    continue
                if entry.kind == "hardlink" and entry.target in leave_out:
                    first = next(e for e in given.values() if e.path == entry.target and e.kind == "file")
                    entry = replace(first, path=entry.path)
                yield entry
            if missing:
                raise _fault(fetched, f"{sorted(missing)[0]!r} is in paths.json but not in the archive")
            for made in place.entry_points():
                assert isinstance(made.content, Inline)
                hashes[made.path] = (hashlib.sha256(made.content.data).hexdigest(), made.size)
                if made.path not in leave_out:
                    yield made
        yield place.record(hashes)


def _fault(fetched: Fetched, what: str) -> LayerError:
    return LayerError(
        f"{fetched.package.filename}: {what}", "the package is damaged or hostile: fetch it again, or lock another build of it"
    )


# archives -------------------------------------------------------------------------------------------------------------


def _zip_member(fetched: Fetched, archive: zipfile.ZipFile, start: str) -> zipfile.ZipInfo:
    found = [i for i in archive.infolist() if i.filename.startswith(start) and i.filename.endswith(".tar.zst")]
    if len(found) != 1:
        raise _fault(fetched, f"{len(found)} {start}*.tar.zst members, not 1")
    return found[0]


@contextmanager
def _damage(fetched: Fetched) -> Iterator[None]:
    try:
        yield
    except BuilderError:
        raise
    except (zipfile.BadZipFile, tarfile.TarError, zstandard.ZstdError, EOFError, OSError, ValueError, KeyError) as e:
        raise _fault(fetched, f"cannot be read: {e}") from e


def _info_files(fetched: Fetched) -> dict[str, bytes]:
    """The info/ files of a package, by name without ``info/``; large ones (licences, tests, recipes) are left out."""
    wanted = {"index.json", "paths.json", "files", "has_prefix", "no_link", "link.json", "no_softlink", "about.json"}
    out: dict[str, bytes] = {}
    with _damage(fetched):
        if fetched.package.filename.endswith(".conda"):
            with zipfile.ZipFile(fetched.path) as archive:
                raw = archive.read(_zip_member(fetched, archive, "info-"))
            data = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True).read()
            stream: IO[bytes] = io.BytesIO(data)
        else:
            stream = bz2.open(fetched.path)
        with stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name.startswith("info/") and name[5:] in wanted and (f := tar.extractfile(member)):
                    out[name[5:]] = f.read()
    return out


def _read_info(fetched: Fetched) -> _Info:
    files = _info_files(fetched)
    with _damage(fetched):
        index = json.loads(files["index.json"]) if "index.json" in files else None
        if not isinstance(index, dict):
            raise _fault(fetched, "no info/index.json")
        if index.get("name") != fetched.package.name:
            raise _fault(fetched, f"its info/index.json says {index.get('name')!r}, the lock says {fetched.package.name!r}")
        link = json.loads(files.get("link.json", b"{}"))
        noarch = index.get("noarch") or ""
        noarch_info = link.get("noarch") or {}
        points = tuple(noarch_info.get("entry_points") or ())
        paths = _paths(files)
    for p in paths:
        try:
            check_path(p.path)
        except LayerError:
            raise _fault(fetched, f"unsafe path {p.path!r}") from None
    return _Info(index, paths, "python" if noarch is True else str(noarch), points, index.get("python_site_packages_path") or "")


def _paths(files: Mapping[str, bytes]) -> tuple[_PathInfo, ...]:
    no_link = set(files.get("no_link", b"").decode().split()) | set(files.get("no_softlink", b"").decode().split())
    if "paths.json" in files:
        return tuple(
            _PathInfo(
                p["_path"],
                p.get("path_type", "hardlink"),
                int(p.get("size_in_bytes") or 0),
                p.get("sha256") or "",
                bool(p.get("no_link")),
                p.get("prefix_placeholder") or "",
                p.get("file_mode") == "binary",
            )
            for p in json.loads(files["paths.json"])["paths"]
        )
    prefixes = {path: (placeholder, mode) for placeholder, mode, path in _has_prefix(files.get("has_prefix", b"").decode())}
    out = []
    for line in files.get("files", b"").decode().splitlines():
        if line.strip():
            placeholder, mode = prefixes.get(line, ("", "text"))
            out.append(_PathInfo(line, "hardlink", 0, "", line in no_link, placeholder, mode == "binary"))
    return tuple(out)


def _has_prefix(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        parts = re.findall(r'"([^"]*)"|(\S+)', line)
        words = [a or b for a, b in parts]
        if len(words) >= 3:
            yield words[0], words[1], " ".join(words[2:])
        elif words:
            yield _DEFAULT_PLACEHOLDER, "text", " ".join(words)


@contextmanager
def _package_tar(fetched: Fetched, tmpdir: Path) -> Iterator[tuple[tarfile.TarFile, Path]]:
    """The package's content as an uncompressed tar in a temporary file, and that file's path (valid inside the block)."""
    with space_errors(tmpdir), tempfile.NamedTemporaryFile(dir=tmpdir, prefix="conda-", suffix=".tar") as spool:
        with _damage(fetched):
            if fetched.package.filename.endswith(".conda"):
                with zipfile.ZipFile(fetched.path) as archive, archive.open(_zip_member(fetched, archive, "pkg-")) as raw:
                    reader = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(raw, read_across_frames=True)
                    _copy(reader, spool)
            else:
                with bz2.open(fetched.path) as plain:
                    _copy(plain, spool)
            spool.flush()
            spool.seek(0)
            tar = tarfile.open(fileobj=spool, mode="r:")  # noqa: SIM115  closed with its file
        yield tar, Path(spool.name)


def _copy(source: Any, target: Any) -> None:
    while chunk := source.read(_CHUNK):
        target.write(chunk)


# placing --------------------------------------------------------------------------------------------------------------


class _Placer:
    """Where a package's files go, and the files that linking makes."""

    def __init__(self, fetched: Fetched, info: _Info, context: LinkContext) -> None:
        self._fetched = fetched
        self._info = info
        self._context = context
        self.prefix = context.prefix
        if info.noarch == "python" and not context.python:
            raise LayerError(f"{fetched.package.filename} is noarch python, and the environment has no python", "add python to the environment")
        package = fetched.package
        stem = package.filename.removesuffix(".conda").removesuffix(".tar.bz2")
        self.record_path = f"{context.prefix.strip('/')}/conda-meta/{stem}.json"

    def relative(self, path: str) -> str:
        """A path of the package below the prefix."""
        if self._info.noarch == "python":
            if path.startswith("site-packages/"):
                return self._context.site_packages + path[len("site-packages") :]
            if path.startswith("python-scripts/"):
                return "bin" + path[len("python-scripts") :]
        return path

    def image(self, path: str) -> str:
        """A path of the package in the image."""
        return f"{self.prefix.strip('/')}/{self.relative(path)}"

    def entry_points(self) -> list[Entry]:
        """The scripts of a noarch python package's entry points."""
        if self._info.noarch != "python":
            return []
        out = []
        for point in self._info.entry_points:
            match = re.fullmatch(r"\s*([^\s=/]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)\s*", point)
            if not match:
                raise _fault(self._fetched, f"entry point {point!r} is not NAME = MODULE:FUNCTION")
            name, module, function = match.groups()
            data = _ENTRY_POINT.format(
                shebang=_shebang(self._context.interpreter), module=module, function=function, head=function.split(".")[0]
            ).encode()
            out.append(Entry(f"{self.prefix.strip('/')}/bin/{name}", "file", 0o775, len(data), content=Inline(data)))
        return out

    def record(self, hashes: Mapping[str, tuple[str, int]]) -> Entry:
        """The package's ``conda-meta`` record."""
        package, index = self._fetched.package, self._info.index
        root = self.prefix.strip("/") + "/"
        paths = []
        for p in self._info.paths:
            where = self.relative(p.path)
            item: dict[str, Any] = {"_path": where, "path_type": p.kind}
            if p.kind != "directory":
                item |= {"sha256": p.sha256 or None, "size_in_bytes": p.size}
                installed = hashes.get(root + where)
                if installed:
                    item["sha256_in_prefix"] = installed[0]
                if p.placeholder:
                    item |= {"file_mode": "binary" if p.binary else "text", "prefix_placeholder": p.placeholder}
            paths.append({k: v for k, v in item.items() if v is not None})
        for e in self.entry_points():
            digest, size = hashes[e.path]
            paths.append(
                {"_path": e.path[len(root) :], "path_type": "unix_python_entry_point", "sha256_in_prefix": digest, "size_in_bytes": size}
            )
        data = {k: v for k, v in index.items() if k not in ("timestamp",)}
        data |= {
            "build": index.get("build", package.build),
            "channel": package.url.rsplit("/", 2)[0],
            "extracted_package_dir": "",
            "files": [p["_path"] for p in paths],
            "fn": package.filename,
            "link": {"source": "", "type": 1},
            "name": package.name,
            "noarch": self._info.noarch or None,
            "package_tarball_full_path": "",
            "paths_data": {"paths": paths, "paths_version": 1},
            "requested_spec": package.name if package.name in self._context.requested else "None",
            "size": self._fetched.size,
            "subdir": package.subdir or index.get("subdir", ""),
            "url": package.url,
            "version": package.version,
        }
        if package.sha256:
            data["sha256"] = package.sha256
        if package.md5:
            data["md5"] = package.md5
        text = json.dumps({k: v for k, v in data.items() if v is not None}, indent=2, sort_keys=True).encode() + b"\n"
        return Entry(self.record_path, "file", 0o644, len(text), content=Inline(text))


_ENTRY_POINT = """#!{shebang}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {head}

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit({function}())
"""


def _shebang(interpreter: str) -> str:
    """What follows ``#!``: the interpreter, or ``/usr/bin/env`` where the kernel would cut or split it."""
    if len(interpreter) + 2 > _MAX_SHEBANG or " " in interpreter:
        return f"/usr/bin/env {interpreter.rsplit('/', 1)[-1]}"
    return interpreter


def _entry(
    fetched: Fetched,
    member: tarfile.TarInfo,
    info: _PathInfo,
    place: _Placer,
    source: Path,
    given: Mapping[str, Entry],
    hashes: dict[str, tuple[str, int]],
) -> Entry:
    path = place.image(info.path)
    if member.issym():
        _check_link(fetched, place.relative(info.path), member.linkname)
        hashes[path] = (info.sha256, info.size) if info.sha256 else ("", 0)
        if not hashes[path][0]:
            del hashes[path]
        return Entry(path, "symlink", 0o777, target=member.linkname)
    if member.islnk():
        target = given.get(member.linkname.removeprefix("./"))
        if target is None or target.kind == "symlink":
            raise _fault(fetched, f"{member.name!r} is a hard link to {member.linkname!r}, which is not before it in the package")
        first = target.target if target.kind == "hardlink" else target.path
        if first in hashes:
            hashes[path] = hashes[first]
        if info.placeholder and not any(e.path == first and isinstance(e.content, Inline) for e in given.values()):
            raise _fault(fetched, f"{member.name!r} has a prefix to replace, its first name {member.linkname!r} has none")
        return Entry(path, "hardlink", target.mode, target=first)
    if not member.isreg():
        raise _fault(fetched, f"{member.name!r} is neither a file, a link nor a folder")
    mode = member.mode & 0o777
    if not info.placeholder:
        if info.sha256:
            hashes[path] = (info.sha256, member.size)
        return Entry(path, "file", mode, member.size, content=Range(source, member.offset_data))
    with source.open("rb") as f:
        f.seek(member.offset_data)
        data = f.read(member.size)
    data = replace_prefix(data, info.placeholder, place.prefix, binary=info.binary, where=f"{fetched.package.filename}: {info.path}")
    hashes[path] = (hashlib.sha256(data).hexdigest(), len(data))
    return Entry(path, "file", mode, len(data), content=Inline(data))


def _check_link(fetched: Fetched, path: str, target: str) -> None:
    """A link may point outside the package, not outside the image by ``..``."""
    if target.startswith("/"):
        return  # absolute links name the image's own files, as a base image's do
    depth = path.count("/") + 16  # the prefix may be deep; what counts is a link that climbs for its own sake
    if target.split("/").count("..") > depth:
        raise _fault(fetched, f"{path!r} is a link that leaves the image: {target!r}")


def replace_prefix(data: bytes, placeholder: str, prefix: str, *, binary: bool, where: str = "") -> bytes:
    """A file's content with the build-time prefix replaced, as conda does it.

    Text: every occurrence; a first line ``#!`` that became too long for the kernel is turned into ``/usr/bin/env``. Binary: in
    each C string, padded with NUL to the length it had.

    Raises:
        LayerError: a binary file, and the new prefix is longer than the placeholder.
    """
    old, new = placeholder.encode(), prefix.encode()
    if not binary:
        data = data.replace(old, new)
        return _fix_shebang(data) if data.startswith(b"#!") else data
    if len(new) > len(old):
        raise LayerError(
            f"{where}: the prefix {prefix} is longer than the {len(old)} bytes that the package leaves for it", "choose a shorter conda.prefix in the recipe"
        )

    def padded(match: re.Match[bytes]) -> bytes:
        text = match.group(0).replace(old, new)
        return text + b"\0" * (len(match.group(0)) - len(text))

    return re.sub(re.escape(old) + rb"[^\0]*", padded, data)


def _fix_shebang(data: bytes) -> bytes:
    line, newline, rest = data.partition(b"\n")
    if len(line) <= _MAX_SHEBANG:
        return data
    match = re.match(rb"#!\s*(\S+)(.*)", line)
    if not match:
        return data
    return b"#!/usr/bin/env " + match.group(1).rsplit(b"/", 1)[-1] + match.group(2) + newline + rest


# environments ---------------------------------------------------------------------------------------------------------


def link_order(packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    """The order in which packages are linked: dependencies first, by name where they leave a choice; cycles are cut by name."""
    by_name = {p.name: p for p in packages}
    out: list[LockedPackage] = []
    state: dict[str, int] = {}
    for start in sorted(by_name):
        stack = [(start, iter(_needs(by_name[start], by_name)))]
        if state.get(start):
            continue
        state[start] = 1
        while stack:
            name, needs = stack[-1]
            following = next((n for n in needs if n not in state), None)
            if following is None:
                out.append(by_name[name])
                state[name] = 2
                stack.pop()
            else:
                state[following] = 1
                stack.append((following, iter(_needs(by_name[following], by_name))))
    return out


def _needs(package: LockedPackage, by_name: Mapping[str, LockedPackage]) -> list[str]:
    return sorted(n for n in package.dependencies if n in by_name and n != package.name)


def python_context(
    packages: Sequence[LockedPackage], fetched: Sequence[Fetched], prefix: str, platform: str, requested: frozenset[str]
) -> LinkContext:
    """What linking depends on: the locked Python and its site-packages (CEP 17, else ``lib/pythonX.Y/site-packages``)."""
    python = next((f for f in fetched if f.package.manager == "conda" and f.package.name == "python"), None)
    if python is None:
        return LinkContext(prefix, "", "", platform, requested)
    version = ".".join(python.package.version.split(".")[:2])
    stated = _read_info(python).site_packages
    return LinkContext(prefix, version, stated or f"lib/python{version}/site-packages", platform, requested)


def history_entry(packages: Iterable[LockedPackage], context: LinkContext) -> Entry:
    """``conda-meta/history``, without which conda does not take the prefix for an environment."""
    lines = ["==> 1980-01-01 00:00:00 <==", "# cmd: builder build", *(f"+{_channel(p)}::{_dist(p)}" for p in packages)]
    if context.requested:
        lines.append(f"# update specs: {json.dumps(sorted(context.requested))}")
    data = ("\n".join(lines) + "\n").encode()
    return Entry(f"{context.prefix.strip('/')}/conda-meta/history", "file", 0o644, len(data), content=Inline(data))


def _channel(package: LockedPackage) -> str:
    return package.url.rsplit("/", 2)[0] + "/" + package.subdir


def _dist(package: LockedPackage) -> str:
    return package.filename.removesuffix(".conda").removesuffix(".tar.bz2")


@dataclass(frozen=True, slots=True)
class Activation:
    """What activating the environment does. ``env`` is its static part; ``scripts`` are run by the entry point."""

    env: Mapping[str, str]
    scripts: tuple[str, ...]


_EXPORT = re.compile(r"""^\s*export\s+([A-Za-z_]\w*)=(?:"([^"`]*)"|'([^']*)'|([^\s"'`;&|<>()]*))\s*(?:\#.*)?$""")


def activation_environment(fetched: Sequence[Fetched], context: LinkContext, tmpdir: Path) -> Activation:
    """The static effect of ``etc/conda/activate.d/*.sh`` and ``etc/conda/env_vars.d/*.json`` of conda packages.

    Only plain ``export NAME=VALUE`` lines at the left margin are taken, with ``$CONDA_PREFIX`` put in; anything that depends on more
    is left to the entry point, which sources the scripts.
    """
    env: dict[str, str] = {}
    scripts: list[str] = []
    for f in fetched:
        info = _read_info(f)
        wanted = {p.path for p in info.paths if is_activation(p.path)}
        if not wanted:
            continue
        with _package_tar(f, tmpdir) as (tar, _):
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in wanted or not (stream := tar.extractfile(member)):
                    continue
                text = stream.read().decode(errors="replace")
                known = next(p for p in info.paths if p.path == name)
                if known.placeholder:
                    text = text.replace(known.placeholder, context.prefix)
                if name.endswith(".json"):
                    with _damage(f):
                        env |= {str(k): str(v) for k, v in json.loads(text).items()}
                else:
                    scripts.append(f"{context.prefix}/{name}")
                    env |= _static_exports(text, context.prefix)
    return Activation(dict(sorted(env.items())), tuple(sorted(scripts)))


def is_activation(path: str) -> bool:
    """Whether a path below the prefix is run or read when the environment is activated."""
    return (path.startswith("etc/conda/activate.d/") and path.endswith(".sh")) or (
        path.startswith("etc/conda/env_vars.d/") and path.endswith(".json")
    )


def _static_exports(text: str, prefix: str) -> dict[str, str]:
    out: dict[str, str] = {}
    for line in text.splitlines():
        if line[:1].isspace():
            continue  # inside an if or a function: it depends on something
        match = _EXPORT.match(line)
        if not match:
            continue
        name, double, single, bare = match.groups()
        value = single if single is not None else double if double is not None else bare
        if single is None:
            value = re.sub(r"\$CONDA_PREFIX\b|\$\{CONDA_PREFIX\}", prefix, value)
            if "$" in value or "\\" in value:
                continue
        out[name] = value
    return out

