"""Archives and folders of the project as sources."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import ConfigError, FetchError, HashMismatch
from builder.lock.spec import SourceSpec, spec_of
from builder.progress import NullReporter
from builder.settings import Settings
from builder.sources import target
from tests.support.fileserver import Server
from tests.unit.sources.conftest import Open

PROJECT = {"tool-1.0/pyproject.toml": b"[project]\n", "tool-1.0/tool.py": b"x = 1\n"}


def tar(files: dict[str, bytes], mode: str = "w:gz", extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if name.endswith("run") else 0o600
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return data.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def link(name: str, kind: bytes, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def archive(url: str, **values: str) -> SourceSpec:
    return SourceSpec("archive", "tool", url, where="env.yml:5", text=url, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tool-1.0.tar.gz", tar(PROJECT)),
        ("tool.tar.bz2", tar(PROJECT, "w:bz2")),
        ("tool.tar.xz", tar(PROJECT, "w:xz")),
        ("main.zip", zipped(PROJECT)),
    ],
)
def test_archives(name: str, data: bytes, opened: Open, server: Server, settings: Settings) -> None:
    """The one folder in it is the package; the hash is pinned, and a locked archive comes from the cache."""
    sha256 = hashlib.sha256(data).hexdigest()
    url = server.put(f"/{name}", data)
    with opened(archive(url)) as tree:
        locked = tree.locked
        assert (locked.url, locked.sha256, tree.path.name) == (url, sha256, "tool-1.0")
        assert (tree.path / "tool.py").read_bytes() == b"x = 1\n"
    offline = replace(settings, offline=True)
    for spec in (spec_of("tool", locked), archive(url, sha256=sha256)):
        with opened(spec, locked, offline) as tree:
            assert tree.locked == locked
    with (
        pytest.raises(FetchError, match="has no hash to find it in the cache"),
        opened(archive(url), settings=offline),
    ):
        pass


def test_wrong_hash(opened: Open, server: Server) -> None:
    """The hash of the requirement, and that of the lock."""
    url = server.put("/tool.tar.gz", tar(PROJECT))
    with (
        pytest.raises(HashMismatch, match="twice, the lock has sha256:0000"),
        opened(archive(url, sha256="0" * 64)),
    ):
        pass
    with opened(archive(url)) as tree:
        locked = replace(tree.locked, sha256="1" * 64)
    with pytest.raises(HashMismatch), opened(archive(url), locked):
        pass


def test_server_without_it(opened: Open, server: Server) -> None:
    with (
        pytest.raises(FetchError, match=r"/x.zip could not be fetched: .*HTTP 404") as caught,
        opened(archive(f"{server.url.replace('//', '//me:hunter2@')}/x.zip")),
    ):
        pass
    assert "hunter2" not in str(caught.value)


def test_password_of_an_archive(opened: Open, server: Server) -> None:
    server.put("/tool.zip", zipped(PROJECT))
    with opened(archive(f"{server.url.replace('//', '//me:hunter2@')}/tool.zip")) as tree:
        assert tree.locked.url == f"{server.url}/tool.zip"
    assert server.log[-1][3].startswith("Basic ")


def test_mirror_of_an_archive(tmp_path: Path, opened: Open, settings: Settings) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror/tool.zip").write_bytes(zipped(PROJECT))
    mirrored = replace(settings, mirrors=(("https://h.example/x", str(tmp_path / "mirror")),))
    with opened(archive("https://h.example/x/tool.zip"), settings=mirrored) as tree:
        assert tree.locked.url == "https://h.example/x/tool.zip"


def test_archive_of_the_project(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "project/dist/tool-1.0.tar.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(tar(PROJECT))
    with opened(archive("dist/tool-1.0.tar.gz")) as tree:
        locked = tree.locked
    assert locked.url == "dist/tool-1.0.tar.gz"
    path.write_bytes(tar({**PROJECT, "tool-1.0/x": b""}))
    with pytest.raises(HashMismatch, match="restore the file"), opened(spec_of("tool", locked), locked):
        pass


def test_members(opened: Open, server: Server) -> None:
    """Links inside stay, a hard link becomes a file, modes are 0644 and 0755."""
    extra = (link("t/link", tarfile.SYMTYPE, "run"), link("t/hard", tarfile.LNKTYPE, "t/run"))
    data = tar({"t/setup.py": b"", "t/run": b"#!"}, extra=(link("t/empty", tarfile.DIRTYPE), *extra))
    with opened(archive(server.put("/t.tgz", data))) as tree:
        assert (tree.path / "link").readlink() == Path("run")
        assert (tree.path / "hard").read_bytes() == b"#!" and (tree.path / "empty").is_dir()
        modes = {name: (tree.path / name).stat().st_mode & 0o777 for name in ("setup.py", "run", "hard")}
        assert modes == {"setup.py": 0o644, "run": 0o755, "hard": 0o755}


def stated(kind: bytes, size: int, pax: dict[str, str] | None = None) -> bytes:
    """An archive whose first header states a size that does not follow."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    if pax is not None:
        header.pax_headers = pax
        return gzip.compress(header.tobuf(tarfile.PAX_FORMAT) + bytes(4096))
    return gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (stated(tarfile.XHDTYPE, 1 << 30), "a tar header of 1073741824 bytes"),
        (stated(tarfile.XGLTYPE, 1 << 30), "a tar header of 1073741824 bytes"),
        (stated(tarfile.GNUTYPE_LONGNAME, 1 << 30), "a tar header of 1073741824 bytes"),
        (stated(tarfile.GNUTYPE_SPARSE, 1 << 30), "a sparse file"),
        (stated(tarfile.REGTYPE, 0, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), "a sparse file"),
        (stated(tarfile.REGTYPE, 0, {"size": "-5"}), "(a negative size|invalid offset)"),  # Debian's tarfile
        (gzip.compress(gzip.decompress(tar(PROJECT))[:1024] + b"x" * 4096), "invalid header"),
        (gzip.compress(gzip.decompress(tar(PROJECT))[:1100]), "truncated header"),
    ],
    ids=range(8),
)
def test_headers_of_a_bomb(data: bytes, message: str, opened: Open, server: Server) -> None:
    """tarfile reads extensions of headers into memory (2 MB of gzip were 4 GB), and ends at a damaged one."""
    url = server.put("/t.tar.gz", data)
    with pytest.raises(FetchError, match=f"a damaged archive: {message}"), opened(archive(url)):
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar({"../escaped": b""}), "'../escaped' is not a path that is unpacked"),
        (tar({"/escaped": b""}), "'/escaped' is not a path"),
        (tar({}, extra=(link("l", tarfile.SYMTYPE, "/etc"),)), "the symlink 'l' leads out"),
        (tar({}, extra=(link("l", tarfile.SYMTYPE, "../.."),)), "the symlink 'l' leads out"),
        (tar({}, extra=(link("l", tarfile.LNKTYPE, "/etc/passwd"),)), "'/etc/passwd' is not a path"),
        (tar({}, extra=(link("l", tarfile.LNKTYPE, "x"),)), "is a link to a missing file"),
        (tar({}, extra=(link("p", tarfile.FIFOTYPE),)), "is a device or a pipe"),
        (tar({"a": b"", "a/b": b""}), "'a/b' appears twice"),
        (tar(PROJECT)[:90], "a damaged archive"),
        (b"", "a damaged archive"),
        (b"<html>", "a damaged archive"),
    ],
    ids=range(11),
)
def test_hostile_archives(tmp_path: Path, data: bytes, message: str, opened: Open, server: Server) -> None:
    url = server.put("/t.tar.gz", data)
    with pytest.raises(FetchError, match=message) as caught, opened(archive(url)):
        pass
    assert caught.value.hint and not list(tmp_path.rglob("escaped"))


def test_hostile_zip(opened: Open, server: Server) -> None:
    for data, message in ((zipped({"..\\x": b""}), "is not a path"), (b"PK\x03\x04", "a damaged archive")):
        url = server.put("/t.zip", data)
        with pytest.raises(FetchError, match=message), opened(archive(url)):
            pass


def test_bounds(opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.put("/t.tar.gz", tar({"a": b"", "b": b"", "c": b""}))
    monkeypatch.setattr(target, "MAX_MEMBERS", 2)
    with pytest.raises(FetchError, match="more than 2 files"), opened(archive(url)):
        pass


def test_no_package(opened: Open, server: Server) -> None:
    url = server.put("/t.tar.gz", tar({"t/README": b"", "t/py/setup.py": b""}))
    with (
        pytest.raises(ConfigError, match="env.yml:5: tool: neither pyproject.toml nor setup.py") as caught,
        opened(archive(url)),
    ):
        pass
    assert caught.value.hint == "name the package's folder: #subdirectory=py"
    with opened(archive(url, subdirectory="py")) as tree:
        assert tree.path == tree.root / "py"


class Notes(NullReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_local_folder(tmp_path: Path, opened: Open, settings: Settings) -> None:
    folder = tmp_path / "project/libs/one"
    folder.mkdir(parents=True)
    (folder / "setup.py").write_text("")
    notes = Notes()
    spec = SourceSpec("local", None, "libs/one", editable=True, where="env.yml:5", text="-e libs/one")
    with opened(spec, reporter=notes) as tree:
        locked = tree.locked
        assert (locked.kind, locked.url, len(locked.tree)) == ("local", "libs/one", 64)
        assert (tree.path / "setup.py").exists() and tree.path != folder
        (tree.path / "build").mkdir()
    assert not tree.path.exists() and [path.name for path in folder.iterdir()] == ["setup.py"]
    assert notes.notes == [
        "env.yml:5: -e ./libs/one is installed as a normal package: an image has no checkout"
    ]
    (folder / "setup.py").write_text("1")
    with pytest.raises(HashMismatch, match=f"the files of {folder} changed"), opened(spec, locked):
        pass
    with pytest.raises(ConfigError, match="does not exist"), opened(replace(spec, url="gone")):
        pass
