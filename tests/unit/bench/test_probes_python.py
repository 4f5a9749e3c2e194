"""Probes of Python: packages from outside of the image."""

from __future__ import annotations

import site
import sys

import pytest

from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask

USER_SITE = "/home/somebody/.local/lib/python3.11/site-packages"


def test_packages_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "getusersitepackages", lambda: USER_SITE)
    assert ask("python.usersite").status == "pass"
    monkeypatch.setattr(sys, "path", [*sys.path, USER_SITE])
    assert ask("python.usersite", fake_torch("CPU")).status == "warn"
    torch = fake_torch("CPU")
    torch.__file__ = f"{USER_SITE}/torch/__init__.py"
    assert ask("python.usersite", torch).status == "fail"


def test_probe_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ValueError("odd")

    monkeypatch.setattr(site, "getusersitepackages", broken)
    assert ask("python.usersite").status == "warn"


def test_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    assert ask("python.path").status == "pass"
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = ask("python.path")
    assert found.status == "warn" and "PYTHONPATH=/elsewhere" in found.seen
