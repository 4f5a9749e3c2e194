"""``builder doctor``: what is available on this machine, without secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.build.run import RUNNER_NAMES
from builder.build.run.failures import Problem
from tests.support.cli import Cli
from tests.support.project import TinyProject


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> dict[str, Problem | None]:
    """What the trials of the runners result in; none is run, and no server is asked."""
    monkeypatch.setenv("BUILDER_OFFLINE", "1")
    found: dict[str, Problem | None] = dict.fromkeys(RUNNER_NAMES)
    monkeypatch.setattr("builder.deliver.doctor.try_runner", lambda kind: found[kind.name])
    return found


def test_runners(do: Cli, tiny: TinyProject, trials: dict[str, Problem | None]) -> None:
    """A runner that cannot start a container is broken, with the line to type."""
    trials["podman"] = Problem("podman could not run the image: rlimit", "default_ulimits = [...]")
    trials["apptainer"] = Problem("not installed", is_installed=False)
    found = {f["what"]: f for f in do("doctor", "--json").json}
    assert (found["run: userns"]["status"], found["run: userns"]["found"]) == ("ok", "ran a container")
    assert found["run: podman"]["status"] == "broken"
    assert found["run: podman"]["hint"] == "default_ulimits = [...]"
    assert found["run: apptainer"]["status"] == "missing"
    assert "default_ulimits = [...]" in do("doctor").out


def test_doctor(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    result = do("doctor", "--json")
    found = {f["what"]: f for f in result.json}
    assert {
        "builder",
        "cache",
        "temporary files",
        "push: credentials",
    } <= found.keys()
    assert {"run: docker", "run: podman", "run: apptainer", "run: userns"} <= found.keys()
    assert any(w.startswith("GPU") for w in found)
    assert all(f["status"] in ("ok", "missing", "broken", "bad") and f["found"] for f in found.values())
    assert result.code == (1 if any(f["status"] == "bad" for f in found.values()) else 0)
    (tmp_path / "file").write_text("")
    bad = do("--cache", tmp_path / "file" / "cache", "doctor", "--json")
    cache = next(f for f in bad.json if f["what"] == "cache")
    assert bad.code == 1 and "Not a directory" in cache["found"] and "BUILDER_CACHE" in cache["hint"]


def test_credentials(do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are named by their source and never shown."""
    monkeypatch.setenv("REGISTRY_USER", "robot$one")
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    result = do("doctor")
    assert "REGISTRY_USER and REGISTRY_PASSWORD" in result.out and "hunter2" not in result.out + result.err


def test_places_of_credentials(
    do: Cli, tiny: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that exist are listed with their hosts, and no value; without any: where they may be."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("builder.formats.registry.credentials.RUN", tmp_path / "run")
    monkeypatch.setattr("builder.formats.registry.credentials.PODMAN", tmp_path)
    for name in (
        "REGISTRY_USER",
        "REGISTRY_AUTH_FILE",
        "XDG_RUNTIME_DIR",
        "DOCKER_CONFIG",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)

    def found() -> dict[str, str]:
        return next(f for f in do("doctor", "--json").json if f["what"] == "push: credentials")

    run, docker = tmp_path / f"run/{os.getuid()}/auth.json", tmp_path / ".docker/config.json"
    assert found()["status"] == "missing"
    assert f"none in {run}, " in found()["found"] and str(docker) in found()["found"]
    run.parent.mkdir(parents=True)
    secret = {"auth": "YW5uOnMzY3JldA=="}
    run.write_text(json.dumps({"auths": {"https://b.example/v1/": secret, "a.example/team": secret}}))
    docker.parent.mkdir()
    docker.write_text(json.dumps({"auths": {"c.example": {}}, "credHelpers": {"d.example": "h"}}))
    assert found()["status"] == "ok"
    assert found()["found"] == f"{run}: a.example, b.example; {docker}: d.example"
    docker.write_text(json.dumps({"auths": {"c.example": {}}, "credsStore": "store"}))
    assert found()["found"].endswith(f"{docker}: c.example")
    docker.write_text("{}")
    assert found()["found"].endswith(f"{docker}: no host")
    docker.write_text("s3cret")
    assert found()["status"] == "broken" and found()["found"] == f"{docker} is not JSON"
