"""Whether the servers of a stack answer, and what they say about themselves."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from builder.errors import RunnerError
from builder.services.engine import Engine
from builder.services.state import Stack, State

_TIMEOUT_S = 10
#: How often a container may be seen ended: on a busy machine Ray's first start can be too slow for itself.
_CHANCES = 3
#: Seconds between two looks at servers that start.
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """One service."""

    service: str
    health: str
    """``healthy``, ``starting``, ``restarting``, ``stopped`` or ``missing``."""
    address: str = ""
    version: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the Ray cluster says."""

    workers: int
    jobs: Mapping[str, Mapping[str, int]]
    """The number of jobs by user and state."""


def check(stack: Stack, state: State, engine: Engine) -> list[Health]:
    """Asks every service.

    Raises:
        RunnerError: the engine does not answer.
    """
    found = engine.states(stack)
    return [_one(service, found.get(service), stack, state, engine) for service in stack.services]


def _one(
    service: str, container: tuple[str, str] | None, stack: Stack, state: State, engine: Engine
) -> Health:
    address = addresses(stack).get(service, "")
    if container is None:
        return Health(service, "missing", address)
    name, status = container
    if name != "running":
        word = {"restarting": "restarting", "created": "starting"}.get(name, "stopped")
        return Health(service, word, address, detail=status)
    ask = _QUESTIONS.get(service, _worker)
    version = ask(stack, state, engine)
    if version is None:
        return Health(service, "starting", address, detail=status)
    return Health(service, "healthy", address, version, status)


def addresses(stack: Stack) -> dict[str, str]:
    """The addresses of the services for programs on this machine."""
    ports = stack.ports
    return {
        "mlflow": f"http://127.0.0.1:{ports['mlflow']}",
        "ray-head": f"http://127.0.0.1:{ports['ray']}",
        "prometheus": f"http://127.0.0.1:{ports['prometheus']}",
        "s3": stack.s3.url if stack.s3 else f"http://127.0.0.1:{ports['s3']}",
    }


def _get(url: str, token: str = "") -> httpx.Response | None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        return answer if answer.status_code < 500 else None
    return None


def _json(url: str, token: str = "") -> Any:
    answer = _get(url, token)
    with contextlib.suppress(ValueError):
        return answer.json() if answer is not None and answer.status_code == 200 else None
    return None


def _mlflow(stack: Stack, state: State, engine: Engine) -> str | None:
    url = addresses(stack)["mlflow"]
    health, version = _get(f"{url}/health"), _get(f"{url}/version")
    return version.text.strip() if health and version and health.status_code == 200 else None


def _prometheus(stack: Stack, state: State, engine: Engine) -> str | None:
    found = _json(f"{addresses(stack)['prometheus']}/api/v1/status/buildinfo")
    return _text(found, "data", "version")


def _head(stack: Stack, state: State, engine: Engine) -> str | None:
    url, token = addresses(stack)["ray-head"], state.token()
    if not token:  # of another user: whether it answers is all that can be seen
        return "" if _get(url) is not None else None
    return _text(_json(f"{url}/api/version", token), "ray_version")


def _postgres(stack: Stack, state: State, engine: Engine) -> str | None:
    program = "cd /usr/lib/postgresql/*/bin && ./pg_isready -q -h 127.0.0.1 -U mlflow && ./postgres --version"
    done = engine.call("exec", stack.container("postgres"), "bash", "-c", program, check=False)
    return done.stdout.strip().rpartition(") ")[2].split()[0] if done.returncode == 0 else None


def _s3(stack: Stack, state: State, engine: Engine) -> str | None:
    return "" if _get(addresses(stack)["s3"]) is not None else None


def _worker(stack: Stack, state: State, engine: Engine) -> str | None:
    return ""


_QUESTIONS: dict[str, Callable[[Stack, State, Engine], str | None]] = {
    "mlflow": _mlflow,
    "prometheus": _prometheus,
    "ray-head": _head,
    "postgres": _postgres,
    "s3": _s3,
}


def _text(found: Any, *keys: str) -> str | None:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def cluster(stack: Stack, state: State) -> Cluster | None:
    """The workers and jobs of the Ray cluster; None if it does not answer this user."""
    url, token = addresses(stack)["ray-head"], state.token()
    nodes, jobs = _json(f"{url}/nodes?view=summary", token), _json(f"{url}/api/jobs/", token)
    if not isinstance(nodes, dict) or not isinstance(jobs, list):
        return None
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        states = [node["raylet"] for node in nodes["data"]["summary"]]
        alive = sum(s.get("state") == "ALIVE" and not s.get("isHeadNode") for s in states)
        counted: dict[str, Counter[str]] = {}
        for job in jobs:
            if job.get("type") == "SUBMISSION":
                user = str((job.get("metadata") or {}).get("user", "unknown"))
                counted.setdefault(user, Counter())[str(job.get("status"))] += 1
        return Cluster(alive, {user: dict(states) for user, states in sorted(counted.items())})
    return None


def wait_until_healthy(
    stack: Stack, state: State, engine: Engine, patience_s: float, on_wait: Callable[[str], None]
) -> list[Health]:
    """Waits until every service answers and all workers have joined the cluster.

    Args:
        stack: the servers.
        state: their folder.
        engine: the container program.
        patience_s: seconds until it gives up.
        on_wait: receives the names of the services that do not answer yet.

    Raises:
        RunnerError: a container ended, or a service does not answer in time.
    """
    end = time.monotonic() + patience_s
    ended: Counter[str] = Counter()
    while True:
        found = check(stack, state, engine)
        late = [each for each in found if each.health != "healthy"]
        if not late:
            ray = cluster(stack, state)
            if ray is None or ray.workers >= stack.workers:
                return found
            on_wait(f"{stack.workers - ray.workers} Ray workers")
        else:
            on_wait(", ".join(each.service for each in late))
        ended.update(each.service for each in late if each.health in ("stopped", "restarting"))
        broken = [each for each in late if ended[each.service] >= _CHANCES]
        if broken or time.monotonic() > end:
            raise _not_healthy(broken or late, stack, engine, patience_s)
        time.sleep(_PAUSE_S)


def _not_healthy(late: list[Health], stack: Stack, engine: Engine, patience_s: float) -> RunnerError:
    if not late:
        late = [Health("ray-worker-0", "starting")]
    one = late[0]
    what = (
        "does not run"
        if one.health in ("stopped", "restarting")
        else f"has no answer after {patience_s:.0f} s"
    )
    log = engine.log_tail(stack, one.service)
    hint = f"read its log: {engine.program} logs {stack.container(one.service)}"
    if one.service.startswith("ray-") and "ray" in log and "not found" in log:
        hint = f"the image of {stack.target} needs Ray: add ray[default] to its environment"
    return RunnerError(f"{one.service} {what}:\n{log}", hint)
