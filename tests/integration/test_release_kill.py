"""``builder promote`` and ``builder rollback`` that are killed after each request that writes, or that race.

A proxy before docker-registry kills the command as soon as the registry has executed the request.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import BuilderError
from builder.formats.registry.transport import Transport
from tests.support import parts
from tests.support.channel import running
from tests.support.releases import Attacker, Team, builder, forget_settings

pytestmark = pytest.mark.registry

#: The last one is more than the requests of one command that write.
STEPS = range(1, 13)
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "builder.cli.promote", "builder.deliver.publishing.promote"])


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a registry, and kills a process after the n-th one that writes."""

    daemon_threads = True

    def __init__(self, to: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.to = to
        self.host = f"127.0.0.1:{self.server_port}"
        self.left = 0
        self.victim: Any = None

    def wrote(self) -> bool:
        """Counts a request; returns whether it was the last one of the victim."""
        self.left -= 1
        if self.victim is None or self.left:
            return False
        os.kill(self.victim.pid, signal.SIGKILL)
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Proxy

    def _pass_on(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = http.client.HTTPConnection(self.server.to, timeout=60)
        connection.request(self.command, self.path, data, dict(self.headers))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if self.command in _WRITES and self.server.wrote():
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if self.command != "HEAD" and "Content-Length" not in answer.headers and answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(registry: parts.Registry) -> Iterator[Proxy]:
    server = Proxy(registry.host)
    with running(server):
        yield server


@pytest.fixture
def team(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    forget_settings(monkeypatch, tmp_path)
    return Team(tmp_path / "team", proxy.host, f"kill/{tmp_path.name.replace('_', '-').strip('-')}")


def _child(home: str, function: Callable[..., int], *args: Any) -> None:
    os.environ["HOME"] = home
    Transport.pause = lambda *_: None  # type: ignore[method-assign]
    os._exit(function(*args))


def _command(team: Team, *args: str) -> int:
    return builder(team, *args, "-y", "--sign", team.key_file)


def _publish(team: Team, label: str) -> int:
    try:
        team.publish(label, "20.02")
    except BuilderError as e:
        return e.exit_code
    return 0


def start(function: Callable[..., int], team: Team, *args: str) -> Any:
    process = _PROCESSES.Process(target=_child, args=(str(team.root), function, team, *args))
    process.start()
    return process


def killed(proxy: Proxy, step: int, team: Team, *args: str) -> bool:
    """Runs a command that is killed after a number of writes; returns False if it needed fewer."""
    proxy.left = step
    proxy.victim = process = start(_command, team, *args)
    process.join()
    proxy.victim = None
    assert process.exitcode in (0, -signal.SIGKILL)
    return bool(process.exitcode)


def whole(thief: Attacker, *tags: str) -> None:
    """Fails unless tags name images with all their parts, which the policy accepts."""
    for tag in tags:
        value = thief.get(tag)
        for part in (value["config"], *value["layers"]):
            thief.read(part)
    for tag in thief.tags():
        value = thief.get(tag)
        parts_of = value.get("manifests") or (value["config"], *value["layers"])
        for part in parts_of:
            assert thief.has(part["digest"]) if "manifests" in value else thief.read(part), tag


def accepted(team: Team, *tags: str) -> None:
    for tag in tags:
        assert builder(team, "verify", f"t:{tag}") == 0, tag


@pytest.mark.parametrize("step", STEPS)
def test_killed(step: int, proxy: Proxy, team: Team) -> None:
    """Each tag names a whole image that verifies, before and after; a second run finishes."""
    old, thief = team.publish("old", "20.01").digest, team.attacker()
    new = team.publish("new", only=("candidate",)).digest
    was_killed = killed(proxy, step, team, "promote", "--tag", "20.01", "--force")
    assert was_killed == (step < STEPS[-1])
    whole(thief, "20.01", "latest")
    accepted(team, "20.01", "latest")
    assert _command(team, "promote", "--tag", "20.01", "--force") == 0
    assert thief.digest("20.01") == thief.digest("latest") == thief.digest("candidate") == new
    accepted(team, "20.01", "latest")
    _roll_back(step, proxy, team, old)


def _roll_back(step: int, proxy: Proxy, team: Team, old: str) -> None:
    thief = team.attacker()
    assert killed(proxy, step, team, "rollback") == (step < STEPS[-1])
    whole(thief, "20.01", "latest")
    accepted(team, "20.01", "latest")
    if thief.digest("latest") != old:
        assert _command(team, "rollback") == 0
    assert thief.digest("20.01") == thief.digest("latest") == old
    whole(thief, "20.01", "latest")
    accepted(team, "20.01", "latest")


def test_two_promotes(team: Team) -> None:
    team.publish("old", "20.01")
    new, thief = team.publish("new", only=("candidate",)).digest, team.attacker()
    both = [start(_command, team, "promote", "--tag", "20.02") for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert thief.digest("20.02") == thief.digest("latest") == new
    whole(thief, "20.01", "20.02", "latest")
    accepted(team, "20.01", "20.02", "latest")


@pytest.mark.parametrize("round_", range(3))
def test_promote_against_publish(round_: int, team: Team) -> None:
    """Two images for the same tags: each tag names one of them, and the loser says so, or was first."""
    team.publish("old", "20.01")
    new, thief = team.publish("new", only=("candidate",)).digest, team.attacker()
    both = [start(_command, team, "promote", "--tag", "20.02", "--force"), start(_publish, team, "other")]
    for process in both:
        process.join()
    codes = [process.exitcode for process in both]
    assert set(codes) <= {0, 12} and 0 in codes
    other = team.built("other").digest
    assert {thief.digest("20.02"), thief.digest("latest")} <= {new, other}
    whole(thief, "20.01", "20.02", "latest")
    accepted(team, "20.01", "20.02", "latest")
