"""Where site files come from (``builder sites update SOURCE``): a folder, a file, a git repository, a URL.

Each source becomes a mapping of paths to contents, within limits. Nothing of an archive is unpacked, and of a
repository nothing is checked out: paths select what is read, and only the stem of a file's name is used.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from builder.config.sites import NAME_HINT, is_site_name, yaml_files
from builder.config.yamlfile import MAX_BYTES
from builder.errors import ConfigError, FetchError, UsageError
from builder.git import REMOTE, Git, GitError
from builder.net.http import make_client
from builder.net.mirrors import mirrored_url
from builder.net.pace import Pace
from builder.redact import redact
from builder.settings import Settings, expand_home
from builder.tarheaders import BLOCK, FILE, TarError, read_headers

#: Site files of one source.
MAX_FILES = 500
#: Bytes of an answer, and of an archive when it is unpacked.
MAX_DOWNLOAD = 16 << 20
MAX_ARCHIVE = 64 << 20

#: Where a source has its site files: the first of these folders that has any.
_PLACES = ("sites", "builder/config/sitefiles", "")
_YAML = re.compile(r".*\.ya?ml")
_GIT = re.compile(r"git\+.*|(?:ssh|file)://.*|https?://.*\.git/?|[\w.-]+@[\w.-]+:.*")
_ARCHIVE = re.compile(r".*\.(?:tar\.gz|tgz)")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def read_source(source: str, settings: Settings, rev: str | None = None) -> dict[str, bytes]:
    """Returns the site files of a source: names and contents.

    Args:
        source: a folder, a file, the URL of a git repository, or the URL of a YAML file or ``.tar.gz``.
        settings: mirrors, and whether the network may be used.
        rev: a branch, tag or commit of a git repository; None: its default branch, or the files of a folder.

    Raises:
        UsageError: the source is none of these.
        FetchError: it cannot be read.
        ConfigError: it has no site files, or too many or too large ones.
    """
    path = expand_home(source)
    if path.exists():
        files = _from_git(str(path.absolute()), rev) if rev else _from_disk(path)
    elif _GIT.fullmatch(source):
        _require_network(source, settings)
        files = _from_git(mirrored_url(settings, source.removeprefix("git+")), rev)
    elif source.startswith(("https://", "http://")):
        if rev:
            raise UsageError(f"--rev is for git repositories, not for {redact(source)}", "write git+URL")
        _require_network(source, settings)
        files = _from_url(mirrored_url(settings, source))
    else:
        raise UsageError(
            f"{redact(source)}: no such folder or file, and not a URL",
            "name a folder, a git repository (git+https://...), or the https URL of a YAML file or .tar.gz",
        )
    return _checked(files, redact(source))


def _require_network(source: str, settings: Settings) -> None:
    if settings.offline and not source.startswith(("file:", "git+file:")):
        raise FetchError(f"{redact(source)}: --offline is set", "name a folder or a file")


def _checked(files: Mapping[str, bytes], source: str) -> dict[str, bytes]:
    """The files, sorted by name. Raises ConfigError for none, too many, too large ones and wrong names."""
    if not files:
        raise ConfigError(f"{source}: no site files", "put them into a folder sites/, as NAME.yaml")
    if len(files) > MAX_FILES:
        raise ConfigError(f"{source}: {len(files)} site files; at most {MAX_FILES} are allowed")
    for name, data in files.items():
        if not is_site_name(name):
            raise ConfigError(
                f"{source}: {name}.yaml: not a valid name of a site",
                NAME_HINT,
            )
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{source}: {name}.yaml: larger than {MAX_BYTES} bytes")
    return dict(sorted(files.items()))


def _chosen(paths: Iterable[str]) -> dict[str, str]:
    """Returns the site files among the paths of a source: their names, and their paths.

    An archive may have one folder around everything.
    """
    parts = [path.removeprefix("./").split("/") for path in paths]
    around = {split[0] for split in parts if len(split) > 1}
    inside = parts and len(around) == 1 and all(len(split) > 1 for split in parts)
    prefixes = ("", f"{around.pop()}/") if inside else ("",)
    for place in _PLACES:
        for prefix in prefixes:
            folder = f"{prefix}{place}".rstrip("/")
            found = {}
            for split in parts:
                *above, name = split
                if "/".join(above) == folder and _YAML.fullmatch(name) and not name.startswith("."):
                    found[name.rpartition(".")[0]] = "/".join(split)
            if found:
                return found
    return {}


# folders and files ------------------------------------------------------------------------------------------


def _from_disk(path: Path) -> dict[str, bytes]:
    try:
        if path.is_file():
            return _from_file(path.name, _read(path, MAX_DOWNLOAD), str(path))
        for place in _PLACES:
            files = yaml_files(path / place)
            if len(files) > MAX_FILES:
                raise ConfigError(f"{path / place}: more than {MAX_FILES} site files")
            if files:
                return {name: _read(file, MAX_BYTES) for name, file in files.items()}
        return {}
    except OSError as e:
        raise FetchError(f"{e.filename or path}: cannot be read: {e.strerror}", "check the path") from None


def _read(path: Path, limit: int) -> bytes:
    """The content of a file, but at most one byte more than the limit.

    Raises:
        ConfigError: it is not a file, but a pipe for example, from which reading may never end.
        OSError: the file cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: not a file", "remove it")
    with path.open("rb") as file:
        return file.read(limit + 1)


def _from_file(name: str, data: bytes, source: str) -> dict[str, bytes]:
    """The site files of an archive, or one site file."""
    if _ARCHIVE.fullmatch(name):
        try:
            return _from_archive(_inflated(data))
        except (TarError, zlib.error) as e:
            raise FetchError(f"{redact(source)}: a damaged archive: {e}", "download it again") from None
    if _YAML.fullmatch(name):
        return {name.rpartition(".")[0]: data}
    raise UsageError(
        f"{redact(source)}: neither a .yaml nor a .tar.gz file", "name one of these, or their folder"
    )


# archives ---------------------------------------------------------------------------------------------------


def _inflated(data: bytes) -> bytes:
    """The tar of a gzip file. Raises TarError or zlib.error for a damaged or too large one."""
    inflater = zlib.decompressobj(wbits=31)
    tar = inflater.decompress(data, MAX_ARCHIVE)
    if inflater.unconsumed_tail:
        raise TarError(f"more than {MAX_ARCHIVE} bytes when unpacked")
    if not inflater.eof:
        raise TarError("it ends too early")
    return tar


class _Bytes:
    """A tar in memory (:class:`builder.tarheaders.TarSource`)."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_exactly(self, size: int) -> memoryview:
        head, self._data = self._data[:size], self._data[size:]
        return head

    def skip(self, size: int) -> None:
        if size > len(self._data):
            raise TarError("it ends too early")
        self._data = self._data[size:]


def _from_archive(tar: bytes) -> dict[str, bytes]:
    """The site files among the ordinary files of a tar; links and other members are ignored."""
    source = _Bytes(tar)
    contents: dict[str, bytes] = {}
    paths = []
    for member in read_headers(source):
        if member.flag == FILE:
            paths.append(member.path)
        if member.flag == FILE and _YAML.fullmatch(member.path) and member.size <= MAX_BYTES:
            contents[member.path.removeprefix("./")] = bytes(source.read_exactly(member.size))
        else:
            source.skip(member.size)
        source.skip(-member.size % BLOCK)
    chosen = _chosen(paths)
    too_large = [path for path in chosen.values() if path not in contents]
    if too_large:
        raise TarError(f"{too_large[0]} is larger than {MAX_BYTES} bytes")
    return {name: contents[path] for name, path in chosen.items()}


# URLs -------------------------------------------------------------------------------------------------------


def _from_url(url: str) -> dict[str, bytes]:
    if url.startswith("file:"):  # a mirror in a folder
        return _from_disk(Path(urlsplit(url).path))
    name = urlsplit(url).path.rpartition("/")[2]
    if not (_YAML.fullmatch(name) or _ARCHIVE.fullmatch(name)):
        raise UsageError(
            f"{redact(url)}: neither a .yaml nor a .tar.gz file",
            f"for a git repository write git+{redact(url)}",
        )
    return _from_file(name, _download(url), url)


def _download(url: str) -> bytes:
    _require_encryption(url)
    shown = redact(url)
    data = bytearray()
    try:
        with make_client(1) as client, client.stream("GET", url) as answer:
            for step in (*answer.history, answer):
                _require_encryption(str(step.url))
            if answer.status_code != 200:
                raise FetchError(f"{shown}: the server answered {answer.status_code}", "check the address")
            for part in Pace.of(answer.iter_raw()):
                data += part
                if len(data) > MAX_DOWNLOAD:
                    raise FetchError(f"{shown}: more than {MAX_DOWNLOAD} bytes", "check the address")
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        raise FetchError(f"{shown}: cannot be reached: {redact(str(e))}", "check the address") from None
    return bytes(data)


def _require_encryption(url: str) -> None:
    """Raises FetchError for git's own transport, and for http except to this machine."""
    split = urlsplit(url)
    if split.scheme == "git" or (split.scheme == "http" and split.hostname not in _LOCAL_HOSTS):
        raise FetchError(f"{redact(url)}: an address without TLS", "write https://")


# git --------------------------------------------------------------------------------------------------------


def _from_git(url: str, rev: str | None) -> dict[str, bytes]:
    """Fetches one commit into a temporary folder, and reads the site files from git's objects."""
    if rev is not None and rev.startswith("-"):
        raise UsageError(f"--rev {rev}: not a branch, tag or commit", "write its name or its whole hash")
    _require_encryption(url)
    with tempfile.TemporaryDirectory(prefix="builder-sites-") as folder:
        try:
            return _of_commit(Git(Path(folder), url), rev or "HEAD", redact(url))
        except GitError as e:
            hint = "check the address, --rev, and your access to it"
            raise FetchError(f"{redact(url)}: {e}", hint) from None


def _of_commit(git: Git, rev: str, shown: str) -> dict[str, bytes]:
    git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--", REMOTE, rev)
    files: dict[str, tuple[str, int]] = {}
    for record in git.records("ls-tree", "-r", "-l", "-z", "FETCH_HEAD"):
        about, _, path = record.partition("\t")
        mode, _, digest, size = about.split()
        if mode in ("100644", "100755"):
            files[path] = digest, int(size)
    chosen = _chosen(files)
    if len(chosen) > MAX_FILES:
        raise ConfigError(f"{shown}: more than {MAX_FILES} site files")
    for path in chosen.values():
        if files[path][1] > MAX_BYTES:
            raise ConfigError(f"{shown}: {path}: larger than {MAX_BYTES} bytes")
    return {name: git.run("cat-file", "blob", files[path][0]) for name, path in chosen.items()}
