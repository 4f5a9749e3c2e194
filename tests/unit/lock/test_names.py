"""Names of conda packages and of PyPI projects."""

from __future__ import annotations

import gzip
import json
import time

import httpx2
import pytest

from builder.core.datafiles import table
from builder.core.store.records import read_record, write_record
from builder.formats.net import answers, http
from builder.lock import names
from builder.lock.names import conda_mapping, known_names, pypi_name

ANSWER = {"a": {"conda_name": "conda-a", "pypi_name": "pypi-a"}}
ENCODED = gzip.compress(json.dumps(ANSWER).encode())


@pytest.fixture
def downloads(monkeypatch):
    """The answers of the server, one per download; an exception is raised."""
    todo: list[object] = []

    def send(request):
        answer = todo.pop(0)
        if isinstance(answer, Exception):
            raise answer
        headers = {"Content-Encoding": "gzip"} if answer == ENCODED else {}
        return httpx2.Response(200, headers=headers, content=iter([answer]))

    def client(*args, **options):
        return httpx2.Client(transport=httpx2.MockTransport(send))

    monkeypatch.setattr(http, "make_client", client)
    return todo


def test_pypi_name():
    assert pypi_name("pytorch") == "torch" and pypi_name("typing_extensions") == "typing-extensions"
    assert pypi_name("a", {"a": "B_c"}) == "b-c" and pypi_name("matplotlib-base", {}) == "matplotlib"


def test_url_is_conda_locks():
    """builder has the URL itself, so that conda-lock is not imported at run time."""
    from conda_lock.lookup import DEFAULT_MAPPING_URL

    assert table(names.__file__, "names.yaml")["mapping"] == DEFAULT_MAPPING_URL


def test_mapping_is_cached(settings, downloads):
    """The mapping is downloaded once in two days."""
    downloads.append(json.dumps(ANSWER).encode())
    assert conda_mapping(settings) == {"conda-a": "pypi-a"} == conda_mapping(settings)
    (record,) = (settings.cache / "names").iterdir()
    old = read_record(record) | {"downloaded": time.time() - 3 * 86400}
    write_record(record, old)
    downloads.append(json.dumps({"b": {"conda_name": "conda-b", "pypi_name": "pypi-b"}}).encode())
    assert conda_mapping(settings) == {"conda-b": "pypi-b"}


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.ConnectError("no network"),
        b"no JSON",
        b"[]",
        b'{"a": {}}',
        b'{"a": 1}',
        b"[" * 100_000,
        ENCODED,
    ],
    ids=["no network", "no JSON", "list", "empty", "number", "deep", "encoded"],
)
def test_mapping_is_not_available(settings, downloads, answer):
    """Without an answer an older mapping serves, or the built-in table."""
    downloads += [answer, answer]
    assert conda_mapping(settings) == known_names("conda_to_pypi")
    write_record(settings.cache / "names" / "conda-to-pypi.json", {"downloaded": 0, "mapping": {"x": "y"}})
    assert conda_mapping(settings) == {"x": "y"}


def test_large_mapping(settings, downloads, monkeypatch):
    """A mapping is read up to the limits of all answers."""
    text = json.dumps(ANSWER).encode()
    downloads += [text, text]
    monkeypatch.setattr(answers, "MAX_PAGE", len(text) - 1)
    assert conda_mapping(settings) == known_names("conda_to_pypi")
    monkeypatch.setattr(answers, "MAX_PAGE", len(text))
    assert conda_mapping(settings) == {"conda-a": "pypi-a"}
