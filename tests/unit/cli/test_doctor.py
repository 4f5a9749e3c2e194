"""``builder doctor``: what is available on this machine, without secrets."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.bases import mmdebstrap
from builder.cli import doctor_target
from builder.errors import ImageError
from builder.run import trial
from builder.run.failures import Problem
from builder.run.select import RUNNER_NAMES
from tests.support.cli import Cli
from tests.support.project import TinyProject, edit


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> dict[str, Problem | None]:
    """What the trials of the runners result in; none is run."""
    found: dict[str, Problem | None] = dict.fromkeys(RUNNER_NAMES)
    monkeypatch.setattr(trial, "try_runner", lambda kind: found[kind.name])
    monkeypatch.setattr(doctor_target, "_PATIENCE_S", 120.0)  # a busy machine
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


def test_debian_base(do: Cli, tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of debian: bases is the check of the build itself."""

    def row() -> dict[str, str]:
        return next(f for f in do("doctor", "--json").json if f["what"] == "base: debian:SUITE")

    def refuse(reference: str) -> str:
        raise ImageError(f"{reference}: user me has no range of ids in /etc/subuid", "as root: usermod ...")

    monkeypatch.setattr(mmdebstrap, "mmdebstrap_mode", refuse)
    assert (row()["status"], row()["found"]) == ("missing", "user me has no range of ids in /etc/subuid")
    assert row()["hint"] == "as root: usermod ..."

    def refuse_namespaces(reference: str) -> str:
        raise ImageError(f"{reference}: E: unshare(CLONE_NEWUSER) failed: Operation not permitted", "ask")

    monkeypatch.setattr(mmdebstrap, "mmdebstrap_mode", refuse_namespaces)
    assert row()["found"].startswith("E: unshare") and row()["hint"] not in ("", "ask")
    monkeypatch.setattr(mmdebstrap, "mmdebstrap_mode", lambda reference: "unshare")


def test_target(
    do: Cli, copy: TinyProject, trials: dict[str, Problem | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a target needs, each with what to do; nothing is built."""
    result = do("doctor", "tiny", "--json")
    found = {f["what"]: f for f in result.json}
    assert result.code == 0 and found["lock"]["status"] == "ok"
    assert found["conda channels"]["status"] == "ok" and found["GPU"]["status"] == "ok"
    assert next(f for w, f in found.items() if w.startswith("base: oci:"))["found"] == "exists"
    assert found["smoke test"]["status"] == "ok" and found["builder run: userns"]["status"] == "ok"

    for name in trials:
        trials[name] = Problem("does not work", f"repair {name}")
    site = {"title": "Big", "runtime": {"kind": "podman-hpc"}, "slurm": {"account": "none"}}
    edit(copy.recipe, gpu={"vendor": "nvidia"}, base="sif:/appl/none/base.sif", site=site, registry={})
    monkeypatch.setattr(doctor_target, "gpu_devices", lambda vendor: [])
    monkeypatch.setenv("PATH", "/nonexistent")
    result = do("doctor", "tiny", "--json")
    found = {f["what"]: f for f in result.json}
    assert result.code == 1
    base = found["base: sif:/appl/none/base.sif"]
    assert base["status"] == "bad" and "BUILDER_MIRRORS=/appl/none=FOLDER" in base["hint"]
    assert found["lock"]["status"] == "bad" and found["lock"]["hint"] == "builder lock tiny"
    assert found["GPU: nvidia"]["hint"] == "build here; on Big: builder smoke tiny --on slurm"
    smoke = found["smoke test"]
    assert smoke["status"] == "missing" and "docker: does not work" in smoke["found"]
    assert found["jobs: sbatch"]["status"] == "missing"
    assert found["push"]["status"] == "missing" and "--to HOST/REPOSITORY" in found["push"]["hint"]
    assert do("doctor", "tinny").code == 3


def test_silent_server(do: Cli, copy: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check without an answer does not hold up the others."""
    ever = threading.Event()
    clock = iter([0.0] * 6 + [1000.0])  # the patience ends when the last check is waited for
    monkeypatch.setattr(doctor_target, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(doctor_target, "_push", lambda project, recipe: ever.wait(600))
    found = {f["what"]: f for f in do("doctor", "tiny", "--json").json}
    assert "no answer within" in found["push"]["found"] and found["disk: cache"]["status"]
    ever.set()


def test_doctor(do: Cli, tiny: TinyProject, tmp_path: Path) -> None:
    result = do("doctor", "--json")
    found = {f["what"]: f for f in result.json}
    assert {
        "builder",
        "lock: py-rattler",
        "lock: uv",
        "cache",
        "temporary files",
        "push: credentials",
    } <= found.keys()
    assert {"run: docker", "run: podman", "run: apptainer", "run: userns"} <= found.keys()
    assert any(w.startswith("GPU") for w in found) and found["lock: uv"]["status"] == "ok"
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
