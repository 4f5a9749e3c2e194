"""The base of a project that names none."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from builder.cli.start import base
from builder.cli.start.base import DEBIAN_BASE, DOCKER_BASE, usual_base
from builder.core.settings import Settings


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(client: object, url: str) -> None:
        raise httpx2.ConnectError("no route")

    monkeypatch.setattr(httpx2.Client, "head", head)


@pytest.mark.parametrize(("makes_debian", "chosen"), [(True, DEBIAN_BASE), (False, DOCKER_BASE)])
def test_silent_hub(
    settings: Settings, silent: None, monkeypatch: pytest.MonkeyPatch, makes_debian: bool, chosen: str
) -> None:
    """Without Docker Hub the base is made here, if this machine can."""
    monkeypatch.setattr(base, "can_make_debian", lambda: makes_debian)
    found, why = usual_base(settings)
    assert found == chosen and ("no route" in why) == makes_debian


def test_hub(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any answer will do: Docker Hub asks for a token."""
    monkeypatch.setattr(httpx2.Client, "head", lambda client, url: httpx2.Response(401))
    assert usual_base(settings) == (DOCKER_BASE, "")


def test_mirror_and_offline(tmp_path: Path, silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror is trusted to answer; offline nothing is asked."""
    monkeypatch.setattr(base, "can_make_debian", lambda: True)
    home = {"HOME": str(tmp_path)}
    mirror = "docker://docker.io/library=docker://127.0.0.1:5000/library"
    assert usual_base(Settings.from_environment({**home, "BUILDER_MIRRORS": mirror})) == (DOCKER_BASE, "")
    found, why = usual_base(Settings.from_environment({**home, "BUILDER_OFFLINE": "1"}))
    assert found == DEBIAN_BASE and "offline" in why
