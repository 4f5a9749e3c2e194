"""The licences that conda packages and wheels declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core.errors import LayerError
from builder.core.settings import Settings
from builder.core.store.blobs import Store
from builder.formats.layers import zips
from builder.formats.layers.cache import declared_record
from builder.formats.layers.inside import declared
from tests.support.channel import make_package
from tests.support.condapackage import fetched as fetched_conda
from tests.support.packagefiles import files_of
from tests.support.wheels import fetched, make_wheel

TEXT = "Copyright (c) me\n        Permission is hereby granted"
MIT = "Classifier: License :: OSI Approved :: MIT License\n"


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
def test_conda(tmp_path: Path, extension: str) -> None:
    path = make_package(tmp_path, "a", index={"license": "BSD-3-Clause"}, extension=extension)
    assert [*declared(fetched_conda(path)).licences] == ["BSD-3-Clause"]
    assert [*declared(fetched_conda(make_package(tmp_path, "b", index={"license": None}))).licences] == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", []),
        (f"License-Expression: MIT OR BSD-3-Clause\n{MIT}", ["MIT OR BSD-3-Clause"]),
        (f"License: BSD\n{MIT}", ["BSD"]),
        (f"License: UNKNOWN\n{MIT}", ["MIT License"]),
        (f"License: {TEXT}\n{MIT}", ["MIT License"]),
        (f"License: {TEXT}\n", ["Copyright (c) me"]),
        ("Classifier: License :: OSI Approved\n", []),
        ("Classifier: License :: Public Domain\nClassifier: Topic :: License\n", ["Public Domain"]),
        ("License: https://me:secret@host.example/licence\n", ["https://host.example/licence"]),
        ("License: Lizenz für\x07 alle\n", ["Lizenz für\x07 alle"]),
        (f"License: {'x' * 1000}\n", ["x" * 500]),
    ],
)
def test_wheel(tmp_path: Path, fields: str, expected: list[str]) -> None:
    path = make_wheel(tmp_path, metadata=fields)
    assert [*declared(fetched(path)).licences] == expected


def test_damaged(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    found = fetched(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LayerError, match="not a wheel"):
        declared(found)


def test_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index and licences of a package are read together."""
    opened = []

    class Source(zips._Zip):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(zips, "_Zip", Source)
    packages = [
        fetched_conda(make_package(tmp_path, "a", index={"license": "BSD-3-Clause"})),
        fetched(make_wheel(tmp_path, metadata="License: MIT\n")),
    ]
    settings = Settings(tmp_path / "cache", tmp_path / "tmp", 2)
    indexes = files_of(packages, settings).indexes
    assert sorted(opened) == sorted(one.path for one in packages)
    store = Store(settings.cache)
    for one, licence in zip(packages, ["BSD-3-Clause", "MIT"], strict=True):
        assert indexes[one.package.key].licences == (licence,)
        assert declared_record(one.package, store).read() == ((licence,), (), ())
