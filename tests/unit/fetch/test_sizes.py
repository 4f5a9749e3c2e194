"""The sizes of archives."""

from __future__ import annotations

from builder.fetch.sizes import head_sizes
from builder.workspace import Workspace
from tests.unit.fetch.conftest import DATA, offline, package


def test_head_sizes(server, settings, store, tmp_path):
    """Sizes of local files and of servers; nothing is downloaded or made."""
    cached, local = package("https://nowhere.invalid/a.conda", b"cached"), tmp_path / "l-1-py3-none-any.whl"
    store.add(b"cached")
    local.write_bytes(b"local!!")
    here = package(local.as_uri(), b"local!!", manager="pip")
    there = package(server.put("/there.conda"))
    unknown = package(server.url + "/unknown.conda", b"?")
    channel = package("builder://debian/noarch/pip-1-0.conda", b"!")
    sizes = head_sizes([cached, here, there, unknown, channel], Workspace(settings, store))
    assert sizes == {cached.key: 6, here.key: 7, there.key: len(DATA), unknown.key: None, channel.key: None}
    assert not (settings.cache / "channels").exists() and {m for m, *_ in server.log} == {"HEAD"}
    assert head_sizes([there], Workspace(offline(settings), store)) == {there.key: None}
