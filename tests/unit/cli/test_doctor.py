"""``builder doctor``: what is available on this machine, without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.project import TinyProject


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
    assert all(f["status"] in ("ok", "missing", "bad") and f["found"] for f in found.values())
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
