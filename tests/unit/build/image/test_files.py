"""builder's own files and the recipe's files in an image, and the whiteout of the prefix."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from builder.build.image.files import smoke_program, system_entries, whiteout_entries
from builder.core.errors import ConfigError
from builder.core.model import Layer
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.core.workspace import Workspace
from builder.formats.layers.build import make_layer
from builder.formats.layers.entry import Entry, Inline
from tests.support.image_kit import image, layer, member, recipe
from tests.support.images import unpack


def own_layer(store: Store, entries: Iterable[Entry]) -> Layer:
    return make_layer(entries, "", Workspace(Settings(store.root, store.root, 1), store))


def by_path(entries: list[Entry]) -> dict[str, Entry]:
    return {e.path: e for e in entries}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "app/sub/__pycache__").mkdir(parents=True)
    (folder / "app/run.sh").write_text("#!/bin/sh\n")
    (folder / "app/run.sh").chmod(0o700)
    (folder / "app/sub/data.txt").write_text("data")
    (folder / "app/sub/data.txt").chmod(0o600)
    (folder / "app/sub/__pycache__/x.pyc").write_text("")
    (folder / "app/link").symlink_to("sub/data.txt")
    (folder / "way-out").symlink_to("/")
    (folder / "train.py").write_text("print(1)\n")
    return folder


def entries(project: Path, *files: dict[str, str], lock: bytes = b"") -> dict[str, Entry]:
    return by_path(system_entries(recipe(project, files=list(files)), lock, ()))


def test_own_files(project: Path) -> None:
    """builder's own files are in /opt/builder; the lock file has no credentials."""
    found = entries(project, lock=b"url: https://me:secret@host/t/tk-123/chan/linux-64/a.conda\n")
    assert set(found) == {
        "opt/builder",
        "opt/builder/conda-lock.yml",
        "opt/builder/entrypoint",
        "opt/builder/smoke.py",
    }
    lock = found["opt/builder/conda-lock.yml"].content
    assert isinstance(lock, Inline) and lock.data == b"url: https://host/t/***/chan/linux-64/a.conda\n"
    smoke = found["opt/builder/smoke.py"].content
    assert isinstance(smoke, Inline) and smoke.data == smoke_program()
    assert found["opt/builder/entrypoint"].mode == 0o755


def test_later_file_wins(project: Path, tmp_path: Path) -> None:
    """A later file replaces an earlier one with the same target."""
    files = [{"source": "train.py", "target": "/a"}, {"source": "app/sub/data.txt", "target": "/a"}]
    store = Store(tmp_path / "cache")
    made = own_layer(store, system_entries(recipe(project, files=files), b"", ()))
    unpack(image(store, made), tmp_path / "r", store)
    assert (tmp_path / "r/a").read_text() == "data"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            {"source": "/etc/shadow", "target": "/x"},
            r"files\[0\]: /etc/shadow is outside of",
        ),
        ({"source": "../secret", "target": "/x"}, "outside of the project folder"),
        ({"source": "app/../../secret", "target": "/x"}, "outside of the project folder"),
        ({"source": "..", "target": "/x"}, "outside of the project folder"),
        ({"source": "way-out/etc", "target": "/x"}, "outside of the project folder"),
        ({"source": "gone.py", "target": "/x"}, r"files\[0\]: .*gone.py does not exist"),
        ({"source": "train.py", "target": "x"}, "not an absolute path"),
        ({"source": "train.py", "target": "/a/../../x"}, "not an absolute path"),
        ({"source": "app", "target": "/"}, "the image's root"),
        ({"source": "train.py", "target": "/lib/x.py"}, "/lib is a symlink"),
        ({"source": "train.py", "target": "/bin"}, "/bin is a symlink"),
        ({"source": "train.py", "target": "/var/run/x"}, "/var/run is a symlink"),
        ({"source": "train.py", "target": "/x", "mode": "rwx"}, "mode 'rwx' is not octal"),
        ({"source": "train.py", "target": "/.wh.etc"}, "deletes files"),
        ({"source": "fifo", "target": "/x"}, "not a file, folder or symlink"),
    ],
)
def test_invalid_files(project: Path, file: dict[str, str], message: str) -> None:
    """Files that cannot be copied are errors that name the recipe."""
    os.mkfifo(project / "fifo")
    with pytest.raises(ConfigError, match=message) as caught:
        entries(project, file)
    assert "tiny.yaml" in caught.value.message and caught.value.hint


def test_whiteout(tmp_path: Path) -> None:
    """The whiteout hides what the base has at the prefix."""
    store = Store(tmp_path / "cache")
    below = layer(
        store,
        member("opt/conda/bin/conda", b"old"),
        member("opt/conda/bin/python", b"old"),
        member("opt/tool", b"1"),
    )
    bottom = own_layer(store, whiteout_entries("/opt/conda"))
    above = layer(store, member("opt/conda/bin/python", b"new"))
    unpack(image(store, below, bottom, above), tmp_path / "r", store)
    opt = tmp_path / "r/opt"
    found = {str(path.relative_to(opt)) for path in opt.rglob("*")}
    assert found == {"conda", "conda/bin", "conda/bin/python", "tool"}
    assert (opt / "conda/bin/python").read_bytes() == b"new"


def test_modes(project: Path) -> None:
    """Copied files and folders have fixed modes."""
    found = entries(
        project,
        {"source": "app", "target": "/app"},
        {"source": "train.py", "target": "/app/"},
        {"source": "train.py", "target": "/x", "mode": "0700"},
    )
    modes = {p: oct(e.mode) for p, e in found.items() if not p.startswith("opt/builder")}
    assert modes == {
        "app": "0o755",
        "app/link": "0o777",
        "app/run.sh": "0o755",
        "app/sub": "0o755",
        "app/sub/data.txt": "0o644",
        "app/train.py": "0o644",
        "x": "0o700",
    }
    assert found["app/link"].target == "sub/data.txt"
