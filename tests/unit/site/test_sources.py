"""Sources of site files: folders, archives, git repositories and web servers, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import BuilderError, ConfigError, FetchError, UsageError
from builder.settings import Settings
from builder.site import sources
from builder.site.sources import read_source
from tests.support.fileserver import Server

A, B = b"site: {title: A}\n", b"site: {title: B}\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.delenv("BUILDER_MIRRORS", raising=False)
    return Settings.from_environment(cache=tmp_path / "cache")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=Me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, "-C", folder, *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose tag ``old`` has site a, and whose branch main has b too."""
    folder = write(tmp_path / "repository", {"sites/a.yaml": A, "mkdocs.yml": b"x: y\n"})
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "-m", "a tag", "old")
    write(folder, {"sites/b.yaml": B})
    (folder / "sites/link.yaml").symlink_to("/etc/passwd")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "two")
    return folder


def archive(files: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            if isinstance(data, tarfile.TarInfo):
                tar.addfile(data)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("place", ["sites", "builder/config/sitefiles", "."])
def test_folder(place: str, tmp_path: Path, settings: Settings) -> None:
    """The first folder that has site files; hidden files and others do not count."""
    folder = write(tmp_path / "f", {f"{place}/a.yaml": A, f"{place}/.hidden.yaml": B, "README.md": b"x"})
    assert read_source(str(folder), settings) == {"a": A}
    assert read_source(str(folder / place / "a.yaml"), settings) == {"a": A}


def test_git(repository: Path, settings: Settings) -> None:
    """Default branch, tag and commit of a repository; links in it are not followed."""
    first = git(repository, "rev-parse", "old^{commit}")
    for url in (repository.as_uri(), f"git+{repository.as_uri()}"):
        assert read_source(url, settings) == {"a": A, "b": B}
    for rev in ("old", first):
        assert read_source(repository.as_uri(), settings, rev) == {"a": A}
        assert read_source(str(repository), settings, rev) == {"a": A}
    with pytest.raises(FetchError, match=r"repository: couldn't find remote ref new"):
        read_source(str(repository), settings, "new")
    with pytest.raises(UsageError, match="--rev --upload-pack=x: not a branch"):
        read_source(str(repository), settings, "--upload-pack=x")


def test_git_in_a_hook(repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a hook do not lead git to the hook's repository."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert list(read_source(repository.as_uri(), settings)) == ["a", "b"]


@pytest.mark.parametrize("around", ["", "./", "sites-main/"])
def test_archive(around: str, server: Server, settings: Settings) -> None:
    """An archive may have a folder around everything. No path of it is used but for the choice."""
    link = tarfile.TarInfo(f"{around}sites/link.yaml")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    data = archive({f"{around}sites/a.yaml": A, "link": link, f"{around}docs/other.yaml": B})
    assert read_source(server.put("/s.tar.gz", data), settings) == {"a": A}


def test_web_server(server: Server, settings: Settings, tmp_path: Path) -> None:
    """One file, and a mirror of it in a folder."""
    assert read_source(server.put("/x/a.yaml", A), settings) == {"a": A}
    write(tmp_path / "mirror", {"b.yaml": B})
    mirrored = replace(settings, mirrors=(("https://example.org/sites", str(tmp_path / "mirror")),))
    assert read_source("https://example.org/sites/b.yaml", mirrored) == {"b": B}


def test_refused_addresses(server: Server, settings: Settings) -> None:
    server.faults["/a.yaml"] = [404, ("redirect", "http://example.org/a.yaml")]
    server.files["/a.yaml"] = A
    for source, message in (
        (f"{server.url}/a.yaml", "the server answered 404"),
        ("http://example.org/a.yaml", "http://example.org/a.yaml: an address without TLS"),
        ("http://me:secret@example.org/a.git", "http://(?!.*secret).*an address without TLS"),
        ("https://example.org/sites", "neither a .yaml nor a .tar.gz file"),
        ("ext::sh -c id", "no such folder or file, and not a URL"),
        ("git+ext::sh -c id", "transport 'ext' not allowed"),
        ("git+git://localhost:9/a.git", "an address without TLS"),
        ("nowhere", "nowhere: no such folder or file"),
    ):
        with pytest.raises(BuilderError, match=message):
            read_source(source, settings)
    with pytest.raises(UsageError, match="--rev is for git repositories"):
        read_source(f"{server.url}/a.yaml", settings, "main")
    with pytest.raises(FetchError, match="--offline is set"):
        read_source("https://example.org/a.yaml", replace(settings, offline=True))


def test_pipe(tmp_path: Path, settings: Settings) -> None:
    """A pipe is refused; reading it would never end."""
    os.mkfifo(write(tmp_path / "f", {"a.yaml": A}) / "b.yaml")
    with pytest.raises(ConfigError, match=r"b\.yaml: not a file"):
        read_source(str(tmp_path / "f"), settings)


def test_names(tmp_path: Path, settings: Settings) -> None:
    """A name that cannot be a site is refused, whatever the source is."""
    with pytest.raises(ConfigError, match=r"f: My Site.yaml: not a valid name of a site"):
        read_source(str(write(tmp_path / "f", {"sites/My Site.yaml": A})), settings)
    with pytest.raises(ConfigError, match="empty: no site files"):
        read_source(str(write(tmp_path / "empty", {"x.txt": A})), settings)


def test_limits(
    server: Server,
    settings: Settings,
    tmp_path: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Downloads, archives, files and their number have limits."""
    bomb = gzip.compress(bytes(200_000))
    monkeypatch.setattr(sources, "MAX_ARCHIVE", 100_000)
    with pytest.raises(FetchError, match="a damaged archive: more than 100000 bytes when unpacked"):
        read_source(server.put("/b.tar.gz", bomb), settings)
    with pytest.raises(FetchError, match="a damaged archive: it ends too early"):
        read_source(server.put("/c.tar.gz", archive({"a.yaml": A})[:-20]), settings)
    with pytest.raises(FetchError, match="a damaged archive"):
        read_source(server.put("/d.tar.gz", b"no archive"), settings)
    monkeypatch.setattr(sources, "MAX_BYTES", 10)
    for source in (
        str(write(tmp_path / "f", {"a.yaml": A})),
        repository.as_uri(),
        server.put("/e.tar.gz", archive({"a.yaml": A})),
        server.put("/a.yaml", A),
    ):
        with pytest.raises(BuilderError, match=r"a.yaml(:| is) larger than 10 bytes"):
            read_source(source, settings)
    monkeypatch.setattr(sources, "MAX_DOWNLOAD", 10)
    with pytest.raises(FetchError, match="more than 10 bytes"):
        read_source(server.put("/a.yaml", A), settings)
    monkeypatch.setattr(sources, "MAX_FILES", 0)
    with pytest.raises(ConfigError, match="site files"):
        read_source(str(tmp_path / "f"), settings)
