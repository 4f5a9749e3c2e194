"""What the servers say, asked over HTTP, and when a start has failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from builder.errors import RunnerError
from builder.services import health
from builder.services.engine import Engine
from builder.services.health import check, cluster, wait_until_healthy
from builder.services.state import Stack, State
from tests.unit.services.conftest import Program

ANSWERS = {
    "/health": "OK",
    "/version": "3.17.2",
    "/api/version": {"ray_version": "2.60.0"},
    "/api/v1/status/buildinfo": {"data": {"version": "2.42.0"}},
    "/nodes?view=summary": {
        "data": {
            "summary": [
                {"raylet": {"state": "ALIVE", "isHeadNode": True}},
                {"raylet": {"state": "ALIVE", "isHeadNode": False}},
                {"raylet": {"state": "DEAD"}},
            ]
        }
    },
    "/api/jobs/": [
        {"type": "SUBMISSION", "status": "RUNNING", "metadata": {"user": "ann"}},
        {"type": "SUBMISSION", "status": "FAILED", "metadata": None},
        {"type": "DRIVER", "status": "RUNNING"},
    ],
}


class Handler(BaseHTTPRequestHandler):
    """All servers at one port. Ray's addresses need the token."""

    token = ""

    def do_GET(self) -> None:
        answer = ANSWERS.get(self.path)
        needs = self.path.startswith(("/api/jobs", "/api/version", "/nodes"))
        allowed = not needs or self.headers["Authorization"] == f"Bearer {self.token}"
        self.send_response(200 if answer and allowed else 403)
        self.end_headers()
        self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[tuple[Stack, State]]:
    """A stack whose servers are all one small server of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    ports = dict.fromkeys(("mlflow", "ray", "prometheus", "s3"), server.server_port)
    made = Stack("services", "trained", "a", "b", "docker", ports, workers=1, gpus=0)
    state = State(tmp_path / "stack")
    state.write(made, "")
    Handler.token = state.token()
    yield made, state
    server.shutdown()
    thread.join()
    server.server_close()


def containers(docker: Program, stack: Stack, **states: str) -> None:
    """Lets the container program list the containers of all services, in these states."""
    lines = [
        f"{stack.container(service)}\t{states.get(service, 'running')}\tUp" for service in stack.services
    ]
    (docker.folder / "containers").write_text("\n".join(lines) + "\n")


def test_check(docker: Program, stack: tuple[Stack, State]) -> None:
    """The versions of what answers; a container that does not run is not asked."""
    made, state = stack
    containers(docker, made, prometheus="exited")
    found = {each.service: each for each in check(made, state, Engine("docker"))}
    assert (found["mlflow"].version, found["ray-head"].version) == ("3.17.2", "2.60.0")
    assert found["s3"].health == "healthy" and found["s3"].address.startswith("http://127.0.0.1:")
    assert (found["prometheus"].health, found["prometheus"].version) == ("stopped", "")


def test_cluster(docker: Program, stack: tuple[Stack, State]) -> None:
    """Workers that live, and jobs by user; nothing without the token."""
    made, state = stack
    found = cluster(made, state)
    assert found is not None and found.workers == 1
    assert found.jobs == {"ann": {"RUNNING": 1}, "unknown": {"FAILED": 1}}
    state.token_file.write_text("another")
    assert cluster(made, state) is None


def test_failed_start(docker: Program, stack: tuple[Stack, State], monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that ends again and again is reported with its log's command; one end is forgiven."""
    made, state = stack
    monkeypatch.setattr(health, "_PAUSE_S", 0)
    containers(docker, made, mlflow="restarting")
    waits: list[str] = []
    with pytest.raises(RunnerError, match="mlflow does not run") as error:
        wait_until_healthy(made, state, Engine("docker"), 60, waits.append)
    assert len(waits) == 3
    assert error.value.hint == f"read its log: docker logs {made.container('mlflow')}"


def test_late(docker: Program, stack: tuple[Stack, State]) -> None:
    made, state = stack
    containers(docker, made, mlflow="created")
    with pytest.raises(RunnerError, match="mlflow has no answer after 0 s"):
        wait_until_healthy(made, state, Engine("docker"), 0, lambda what: None)
