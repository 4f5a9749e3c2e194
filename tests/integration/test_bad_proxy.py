"""Publish and pull through a proxy that lies, breaks off, or does not end, before a real registry.

A tag never names a part of an image, each command that fails is completed by the next one without the fault,
no error is a traceback, and what does not end is given up. Times are limits of builder, which are made short
here, never a measure of this machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from builder.cli import cli, run
from builder.formats.net import pace
from builder.formats.registry import transport
from tests.support.badproxy import Answer, BadProxy, Exchange, Fault, bad_proxy
from tests.support.cli import Cli, Result, adopt
from tests.support.machine import pulled_whole, tag_of
from tests.support.parts import Registry
from tests.support.project import TinyProject, edit, tiny_channel, tiny_project, whole

OTHER = "sha256:" + "1" * 64
#: Requests that are answered before a fault begins that lasts.
FIRST = 3


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data


def some_503(ask: Exchange) -> None:
    """Each request is refused once, as the next ones."""
    ask.refuse(Answer(503)) if ask.is_first else ask.pass_on()


def rate_limit(ask: Exchange) -> None:
    ask.refuse(Answer(429, {"Retry-After": "1"})) if ask.is_first else ask.pass_on()


def dropped(ask: Exchange) -> None:
    ask.hang_up() if ask.is_first else ask.pass_on()


def upload_dropped(ask: Exchange) -> None:
    ask.hang_up(ask.length // 2) if ask.length and ask.is_first else ask.pass_on()


def cut_answer(ask: Exchange) -> None:
    answer = ask.asked()
    half = len(answer.body) // 2 if ask.is_first and ask.command == "GET" else 0
    data = ask.raw(answer)
    ask.wfile.write(data[: len(data) - half])
    ask.close_connection = True


def flipped_up(ask: Exchange) -> None:
    ask.wfile.write(ask.raw(ask.asked(flipped if ask.command in ("PUT", "PATCH") else bytes)))


def flipped_down(ask: Exchange) -> None:
    answer = ask.asked()
    ask.wfile.write(ask.raw(replace(answer, body=flipped(answer.body)) if ask.is_blob else answer))


def other_manifest(ask: Exchange) -> None:
    answer = ask.asked()
    is_manifest = ask.command == "GET" and "/manifests/" in ask.path and answer.status == 200
    ask.wfile.write(ask.raw(replace(answer, body=b" " + answer.body) if is_manifest else answer))


def wrong_digests(ask: Exchange) -> None:
    ask.wfile.write(ask.raw(ask.asked().having(Docker_Content_Digest=OTHER)))


def unauthorized(ask: Exchange) -> None:
    ask.refuse(Answer(401, {"WWW-Authenticate": 'Basic realm="x"'}))


def challenge_loop(ask: Exchange) -> None:
    """A token server whose tokens are never accepted."""
    if ask.path.startswith("/token"):
        ask.refuse(Answer(200, {}, b'{"token": "t"}'))
    else:
        realm = f'Bearer realm="http://{ask.server.host}/token",service="x"'
        ask.refuse(Answer(401, {"WWW-Authenticate": realm}))


def redirect_loop(ask: Exchange) -> None:
    ask.refuse(Answer(307, {"Location": f"{ask.path.partition('?')[0]}?{ask.number}"}))


def web_page(ask: Exchange) -> None:
    ask.refuse(Answer(200, {"Content-Type": "text/html"}, b"<!doctype html><h1>Log in</h1>"))


def all_503(ask: Exchange) -> None:
    ask.refuse(Answer(503))


def long_wait(ask: Exchange) -> None:
    ask.pass_on() if ask.number < FIRST else ask.refuse(Answer(503, {"Retry-After": "100000"}))


def no_answer(ask: Exchange) -> None:
    ask.pass_on() if ask.number < FIRST else ask.drip(b"HT", 3600)


def endless_header(ask: Exchange) -> None:
    ask.pass_on() if ask.number < FIRST else ask.drip(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20), 0.1)


def two_bytes(ask: Exchange) -> None:
    """What is longer than an error of a registry comes by two bytes."""
    data = ask.raw(ask.asked())
    ask.drip(data, 0.1) if len(data) > 1000 else ask.wfile.write(data)


#: Each fault, whether publish and pull succeed in spite of it, and a text of their errors.
FAULTS: dict[Fault, tuple[bool, bool, str]] = {
    some_503: (True, True, ""),
    rate_limit: (True, True, ""),
    dropped: (True, True, ""),
    upload_dropped: (True, True, ""),
    cut_answer: (True, True, ""),
    flipped_up: (False, True, "DIGEST_INVALID"),
    flipped_down: (False, False, "digest mismatch|with the digest"),
    other_manifest: (False, False, "digest mismatch"),
    wrong_digests: (False, False, OTHER),
    unauthorized: (False, False, "401"),
    challenge_loop: (False, False, "401"),
    redirect_loop: (False, False, "its redirects form a loop"),
    web_page: (False, False, "answers with a web page, not a registry"),
    all_503: (False, False, "503"),
    long_wait: (False, False, "503"),
    no_answer: (False, False, "no response in time"),
    endless_header: (False, False, "no response in time"),
    two_bytes: (False, False, "no response in time"),
}
_STALLS = (no_answer, endless_header, two_bytes)


@pytest.fixture(scope="module")
def built(module_folder: Path) -> Iterator[TinyProject]:
    project = tiny_project(module_folder, tiny_channel(module_folder / "channel").as_uri())
    edit(project.recipe, smoke={"none": "no [python] in it"})
    with pytest.MonkeyPatch.context() as patch:
        adopt(project, patch)
        assert run(cli, ["build", "tiny"]) == 0
    return project


@pytest.fixture
def do(capfd: pytest.CaptureFixture[str]) -> Cli:
    def do(*args: str | Path) -> Result:
        code = run(cli, [str(a) for a in args])
        return Result(code, *capfd.readouterr())

    return do


@pytest.fixture
def proxy(registry: Registry) -> Iterator[BadProxy]:
    with bad_proxy(registry.host) as proxy:
        yield proxy


def short_limits(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Makes waits short; for what does not end also the limits of builder."""
    patch.setattr(transport, "MAX_WAIT_S", 0.02)
    if fault in _STALLS:
        patch.setattr(transport, "_TIMEOUT", httpx2.Timeout(2, connect=15, write=2, pool=None))
        patch.setattr(transport, "MAX_FAILING_S", 3)
        patch.setattr(pace, "WINDOW_S", 0.5)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault(
    do: Cli,
    built: TinyProject,
    registry: Registry,
    proxy: BadProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    project = TinyProject(tmp_path / "project", tmp_path / "cache")
    shutil.copytree(built.root, project.root, symlinks=True)
    shutil.copytree(built.cache, project.cache)
    adopt(project, monkeypatch)
    repository = f"bad-proxy/{fault.__name__}"
    published, pulled, text = FAULTS[fault]
    publish = ["publish", "tiny", "--to", f"{proxy.host}/{repository}", "--tag", "26.11", "--json"]
    pull = ["pull", "tiny", "--from", f"{proxy.host}/{repository}", "--json", "--output"]

    def with_fault(succeeds: bool, *command: str | Path) -> None:
        proxy.be(fault)
        with pytest.MonkeyPatch.context() as patch:
            short_limits(patch, fault)
            result = do(*command)
        proxy.be(Exchange.pass_on)
        assert "Traceback" not in result.err and result.code in ((0,) if succeeds else (6, 9, 12)), result
        if not succeeds:
            assert re.search(text, result.err), result.err

    with_fault(published, *publish)
    digest = do("build", "tiny", "--json").json["digest"]
    for tag in ("26.11", "latest"):
        assert tag_of(registry, repository, tag) in ((digest,) if published else (None,))
    done = do(*publish)
    assert done.code == 0 and done.json["digest"] == digest, done.err
    pulled_whole(registry, repository, "latest")

    monkeypatch.setenv("BUILDER_CACHE", str(tmp_path / "other"))
    with_fault(pulled, *pull, tmp_path / "layout")
    assert (tmp_path / "layout/index.json").exists() == pulled
    done = do(*pull, tmp_path / "layout")
    assert done.code == 0 and done.json["digest"] == digest, done.err
    whole(tmp_path / "layout", digest)
