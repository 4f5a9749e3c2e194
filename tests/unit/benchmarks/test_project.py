"""The commands of the benchmark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.project import Counts, Project, Traffic
from tests.support.doccommands import parse


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.__new__(Project)
    made.root = tmp_path
    made.registry = SimpleNamespace(host="127.0.0.1:5000")  # type: ignore[assignment]
    return made


def test_options_exist(project: Project) -> None:
    """make bench runs for long before an option that builder no longer has ends it."""
    for words in (
        project.publish_command("bench"),
        project.command("lock", "bench"),
        project.command("build"),
    ):
        parse(words[words.index("--project") + 2 :])


def test_traffic(tmp_path: Path) -> None:
    """Received is what the registry and the servers of packages have sent, sent is what the
    registry has.
    """
    (tmp_path / "log").write_text(
        'time="2026" level=info msg="response completed" http.response.written=2\n'
        '127.0.0.1 - - [28/Nov/2026:15:56:08 +0000] "GET /v2/a/blobs/sha256:1 HTTP/1.1" 200 300 "" "go"\n'
        '127.0.0.1 - - [28/Nov/2026:15:56:09 +0000] "PUT /v2/a/blobs/uploads/1 HTTP/1.1" 201 7 "" ""\n'
    )
    size = (tmp_path / "log").stat().st_size
    registry = SimpleNamespace(log=tmp_path / "log", log_size=lambda: size)
    state = SimpleNamespace(registry=registry, size=lambda: 40)
    first, second = SimpleNamespace(sent=lambda: 1000), SimpleNamespace(sent=lambda: 20)
    traffic = Traffic(state, [first])  # type: ignore[arg-type,list-item]
    with traffic.including(second):  # type: ignore[arg-type]
        assert traffic.count() == Counts(sent=40, received=1320)
    assert traffic.count() == Counts(sent=40, received=1300)
