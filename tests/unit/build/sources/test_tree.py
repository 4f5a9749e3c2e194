"""Archives and folders of the project as sources."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build.sources import target
from builder.core.errors import ConfigError, FetchError, HashMismatch
from builder.core.settings import Settings
from builder.formats.layers import bounds
from builder.lock.spec import SourceSpec, spec_of
from tests.support.fileserver import Server
from tests.support.reporters import Notes
from tests.unit.build.sources.conftest import Open

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


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
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
        ("tool-1.0.zip", zipped({"tool-1.0/": b"", **PROJECT})),
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


def test_members(opened: Open, server: Server) -> None:
    """Links inside stay, a hard link becomes a file, modes are 0644 and 0755."""
    extra = (link("t/link", tarfile.SYMTYPE, "run"), link("t/hard", tarfile.LNKTYPE, "t/run"))
    data = tar({"t/setup.py": b"", "t/run": b"#!"}, extra=(link("t/empty", tarfile.DIRTYPE), *extra))
    with opened(archive(server.put("/t.tgz", data))) as tree:
        assert (tree.path / "link").readlink() == Path("run")
        assert (tree.path / "hard").read_bytes() == b"#!" and (tree.path / "empty").is_dir()
        modes = {name: (tree.path / name).stat().st_mode & 0o777 for name in ("setup.py", "run", "hard")}
        assert modes == {"setup.py": 0o644, "run": 0o755, "hard": 0o755}


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
        (b"<html>", "is neither a gzipped tar nor a zip"),
        (zipped({"../escaped": b""}), "'../escaped' is not a path that is unpacked"),
        (zipped({"a": b"", "a/b": b""}), "'a/b' appears twice"),
        (zipped(PROJECT)[:90], "a damaged archive"),
    ],
    ids=range(13),
)
def test_hostile_archives(tmp_path: Path, data: bytes, message: str, opened: Open, server: Server) -> None:
    url = server.put("/t.tar.gz", data)
    with pytest.raises(FetchError, match=message) as caught, opened(archive(url)):
        pass
    assert caught.value.hint and not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("packed", [tar, zipped])
def test_bounds(
    packed: Callable[[dict[str, bytes]], bytes],
    opened: Open,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = server.put("/t.tar.gz", packed({"a": b"", "b": b"", "c": b""}))
    monkeypatch.setattr(target, "MAX_MEMBERS", 2)
    with pytest.raises(FetchError, match="more than 2 files"), opened(archive(url)):
        pass


def test_directory_of_a_zip(opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a zip is bounded before it is read, and so is what its members unpack to."""
    url = server.put("/t.zip", zipped(PROJECT | {f"tool-1.0/{number}": b"" for number in range(100)}))
    with opened(archive(url)):
        pass
    monkeypatch.setattr(bounds, "MAX_DIRECTORY", 4000)
    with pytest.raises(FetchError, match="its central directory has .* at most 4000"), opened(archive(url)):
        pass
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        server.put("/t.zip", zipped({"a": b"x"}, method))
        with pytest.raises(FetchError, match=f"compressed by method {method}"), opened(archive(url)):
            pass


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
    with opened(spec, locked) as tree:
        assert tree.locked.tree != locked.tree, "its files of today: the hash of the wheel decides"
    with pytest.raises(ConfigError, match="does not exist"), opened(replace(spec, url="gone")):
        pass


def test_password_of_an_archive(opened: Open, server: Server) -> None:
    server.put("/tool.zip", tar(PROJECT))
    with opened(archive(f"{server.url.replace('//', '//me:hunter2@')}/tool.zip")) as tree:
        assert tree.locked.url == f"{server.url}/tool.zip"
    assert server.log[-1][3].startswith("Basic ")
