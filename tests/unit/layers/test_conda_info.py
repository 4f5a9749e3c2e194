"""What a conda package's info/ says, and what is refused in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import LayerError
from builder.layers.conda import CondaReader
from builder.layers.conda_info import DEFAULT_PLACEHOLDER
from tests.support.channel import PLACEHOLDER
from tests.support.conda_reader import CONTEXT, read, record
from tests.support.condapackage import (
    Member,
    fetched,
    pack,
)

UNSAFE = ["/etc/passwd", "../up", "a/../../up", "a//b", "./x/.", "nul\0byte", ""]


@pytest.mark.parametrize("path", UNSAFE)
def test_unsafe_paths(tmp_path: Path, path: str) -> None:
    """Unsafe paths in paths.json are refused."""
    listed = json.dumps({"paths": [{"_path": path, "path_type": "hardlink"}], "paths_version": 1}).encode()
    package = fetched(pack(tmp_path, "thing", info={"paths.json": listed}))
    for call in (lambda: CondaReader(tmp_path).index(package, CONTEXT), lambda: read(package, tmp_path)):
        with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda: unsafe path") as e:
            call()
        assert "fetch it again" in e.value.hint


@pytest.mark.parametrize(
    "point",
    [
        "../up = m:f",
        "a/b = m:f",
        "x = m",
        "m:f",
        "x = m:f(); import os",
        "x = os; evil:f",
        "x = m:1f",
        ".hidden = m:f",
        "= m:f",
        "x = m.:f",
    ],
)
def test_unsafe_entry_points(tmp_path: Path, point: str) -> None:
    """Entry points that are not COMMAND = MODULE:FUNCTION are refused."""
    package = fetched(pack(tmp_path, "thing", noarch="python", entry_points=[point]))
    with pytest.raises(
        LayerError, match=r"thing-1\.0-0\.conda: entry point .* is not COMMAND = MODULE:FUNCTION"
    ):
        CondaReader(tmp_path).index(package, CONTEXT)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"index.json": b"not json"}, "cannot be read"),
        ({"index.json": b"[]"}, "no info/index.json"),
        (
            {"index.json": b'{"name": "other", "version": "1.0", "build": "0"}'},
            "is that of 'other', but the lock names 'thing'",
        ),
        (
            {"index.json": b'{"name": "thing", "version": "../../1", "build": "0"}'},
            "unsafe name, version or build",
        ),
        ({"index.json": b'{"name": "thing", "version": "1", "build": "0", "noarch": 7}'}, "noarch is 7"),
        ({"paths.json": b"[1]"}, "cannot be read"),
        ({"paths.json": b'{"paths": [{"path_type": "hardlink"}]}'}, "cannot be read"),
        ({"paths.json": b'{"paths": [{"_path": "a", "path_type": "device"}]}'}, "cannot be read"),
        (
            {"paths.json": b'{"paths": [{"_path": "gone", "path_type": "hardlink"}]}'},
            "'gone' is listed in its info/ but not in the archive",
        ),
    ],
)
def test_damaged_metadata(tmp_path: Path, info: dict[str, bytes], message: str) -> None:
    """Damaged metadata is refused with the package's name and the reason."""
    with pytest.raises(LayerError, match=r"thing-1\.0-0\.conda") as e:
        read(fetched(pack(tmp_path, "thing", info=info)), tmp_path)
    assert message in e.value.message


def test_has_prefix_lines(tmp_path: Path) -> None:
    """Lines of info/has_prefix with and without a placeholder are understood."""
    old = DEFAULT_PLACEHOLDER
    members = [
        Member("etc/plain", f"a {old}".encode()),
        Member("etc/with blank", b"b " + PLACEHOLDER.encode()),
    ]
    has_prefix = f'etc/plain\n{PLACEHOLDER} text "etc/with blank"\n'.encode()
    package = fetched(
        pack(tmp_path, "thing", members, old=True, info={"has_prefix": has_prefix, "no_link": b"etc/plain\n"})
    )
    found = read(package, tmp_path)
    assert found["opt/conda/etc/plain"][1] == b"a /opt/conda"
    assert found["opt/conda/etc/with blank"][1] == b"b /opt/conda"
    assert [p.get("no_link") for p in record(found)["paths_data"]["paths"]] == [True, None]
