"""Source distributions on real loopback indexes and in folders."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.version import Version

from builder.core.errors import FetchError
from builder.core.settings import Settings
from builder.lock.config.recipe import Recipe
from builder.lock.indexes import Indexes
from builder.lock.request import SolveRequest
from builder.lock.sdists import find_sdists, find_wheels
from builder.lock.spec import Environment
from tests.support.fileserver import Server

SHA = "a" * 64
HTML = f"""<!DOCTYPE html><html><body>
<a href="../files/old_pkg-0.3.tar.gz#sha256={SHA}">old_pkg-0.3.tar.gz</a>
<a href="../files/old_pkg-0.4.tar.gz" data-yanked="broken">old_pkg-0.4.tar.gz</a>
<a href="../files/old_pkg-0.5.tar.gz" data-requires-python="&gt;=3.13">old_pkg-0.5.tar.gz</a>
<a href="../files/old_pkg-0.2.zip">old_pkg-0.2.zip</a>
<a href="../files/old_pkg-0.6-py3-none-any.whl">a wheel</a>
<a href="../files/other-0.7.tar.gz">another</a>
<a>nothing</a>
</body></html>"""


def request(root: Path, newest: datetime | None = None, offline: bool = False) -> SolveRequest:
    recipe = Recipe.model_validate(
        {"name": "t", "base": "debian:bookworm", "environment": "e.yml", "root": root}
    )
    variables = {"HOME": str(root), **({"BUILDER_OFFLINE": "1"} if offline else {})}
    settings = Settings.from_environment(variables)
    return SolveRequest(recipe, Environment(root / "e.yml", "", (), (), ()), settings, newest=newest)


def versions(request: SolveRequest, indexes: Indexes) -> list[str]:
    found = find_sdists("old-pkg", request, "3.11.2", indexes)
    return [str(version) for version in sorted(found, reverse=True)]


WHEELS = f"""<a href="old_pkg-1.0-cp37-cp37m-manylinux1_x86_64.whl">for another Python</a>
<a href="old_pkg-1.1-cp311-cp311-manylinux_2_17_x86_64.whl">fits</a>
<a href="old_pkg-1.2-cp311-cp311-win_amd64.whl">for another system</a>
<a href="old_pkg-1.3-py3-none-any.whl">fits</a>
<a href="old_pkg-1.4-py3-none-any.whl" data-yanked="">yanked</a>
<a href="old_pkg-1.5-py3-none-any.whl" data-requires-python="&gt;=3.13">for another Python</a>
<a href="other-1.6-py3-none-any.whl">another</a><a href="old_pkg-1.7.tar.gz#sha256={SHA}">a source</a>"""


def test_wheels(tmp_path: Path, server: Server) -> None:
    """The versions with a wheel for the target, of the package alone."""
    server.put("/simple/old-pkg/", WHEELS.encode())
    index = Indexes(f"{server.url}/simple")
    asked, offline = request(tmp_path), request(tmp_path, offline=True)
    find = find_wheels("old-pkg", asked, index)
    assert sorted(map(str, find(asked.recipe, "3.11.2"))) == ["1.1", "1.3"]
    assert Version("1.5") in find(asked.recipe, "3.13.0")
    assert server.gets("/simple/old-pkg/") == [""]
    assert find_wheels("old-pkg", offline, index)(asked.recipe, "3.11.2") == set()


def test_first_index(tmp_path: Path, server: Server) -> None:
    """Where the first index that has a package counts, sources of the others are not for it."""
    for name, version in (("corp", "1.0"), ("pypi", "9.0")):
        page = f'<a href="old_pkg-{version}.tar.gz#sha256={SHA}">a</a>'
        server.put(f"/{name}/old-pkg/", page.encode())
    indexes = Indexes(f"{server.url}/pypi", (f"{server.url}/nothing", f"{server.url}/corp"))
    of_any = request(tmp_path)
    first = replace(of_any, environment=replace(of_any.environment, uv={"index-strategy": "first-index"}))
    assert versions(of_any, indexes) == ["9.0", "1.0"]
    assert versions(first, indexes) == ["1.0"]


def test_html(tmp_path: Path, server: Server) -> None:
    server.put("/simple/old-pkg/", HTML.encode())
    index = Indexes(f"{server.url}/simple", (f"{server.url}/simple",))  # asked once
    found = find_sdists("old-pkg", request(tmp_path), "3.11.2", index)
    newest, older = found[Version("0.3")], found[Version("0.2")]
    assert len(found) == 2 and older.text == "old-pkg==0.2"
    assert newest.url == f"{server.url}/simple/files/old_pkg-0.3.tar.gz" and newest.sha256 == SHA
    assert older.sha256 == ""


def test_json(tmp_path: Path, server: Server) -> None:
    """The upload times of PEP 700 count where the recipe has a date."""
    times = {"0.1": "2021-05-23T17:00:07.015538Z", "0.2": "2026-01-01T00:00:00Z", "0.3": None}
    files = [
        {
            "filename": f"old-pkg-{version}.tar.gz",
            "url": f"/f/old-pkg-{version}.tar.gz",
            "hashes": {"sha256": SHA},
            "upload-time": time,
            "yanked": False,
        }
        for version, time in times.items()
    ]
    page = json.dumps({"files": [*files, "x", {"filename": 3}]})
    server.put("/simple/old-pkg/", page.encode())
    index = Indexes(extra=(f"{server.url}/simple/",))
    assert versions(request(tmp_path), index) == ["0.3", "0.2", "0.1"]
    assert versions(request(tmp_path, datetime(2025, 1, 1, tzinfo=UTC)), index) == ["0.1"]


def test_folder(tmp_path: Path) -> None:
    """A lock can name a file of the project, and no other."""
    for folder in ("project/sources", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "old_pkg-1.0.tar.gz").touch()
    project = request(tmp_path / "project")
    inside, outside = (tmp_path / place for place in ("project/sources", "elsewhere"))
    index = Indexes(find_links=(inside.as_uri(),))
    [sdist] = find_sdists("old-pkg", project, "3.11.2", index).values()
    assert sdist.url == "sources/old_pkg-1.0.tar.gz"
    assert versions(project, Indexes(find_links=(outside.as_uri(),))) == []


def test_silent_index(tmp_path: Path, server: Server) -> None:
    server.faults["/simple/old-pkg/"] = [503]
    with pytest.raises(FetchError, match="cannot be read .HTTP 503|cannot be read .Server error"):
        versions(request(tmp_path), Indexes(f"{server.url}/simple"))


def test_offline(tmp_path: Path) -> None:
    assert versions(request(tmp_path, offline=True), Indexes("https://index.invalid/simple")) == []


def test_broken_pages(tmp_path: Path, server: Server) -> None:
    """An error names the page; a version that Python cannot read is no version."""
    page = json.dumps({"files": [{"filename": f"old_pkg-{'9' * 5000}.tar.gz", "url": "a"}]})
    index = Indexes(f"{server.url}/simple")
    server.put("/simple/old-pkg/", page.encode())
    assert versions(request(tmp_path), index) == []
    server.put("/simple/old-pkg/", b'{"files": ' + b"[" * 100_000)
    with pytest.raises(FetchError, match="/simple/old-pkg/ cannot be read .nested too deeply"):
        versions(request(tmp_path), index)
