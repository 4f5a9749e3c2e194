"""Probes of the system: shared memory, certificates, temporary files, locale, time zone."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.smoke import ask
from tests.unit.bench.conftest import WriteFile


def test_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(f_frsize=4096, f_blocks=(64 << 20) // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    found = ask("memory.shm")
    assert found.status == "warn" and "64 MiB" in found.seen and "--shm-size" in found.advice

    def gone(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", gone)
    assert ask("memory.shm").status == "warn"


def test_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    found = ask("system.certificates")
    assert found.status == "warn" and "gone.pem does not exist" in found.seen
    (tmp_path / "empty.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    found = ask("system.certificates")
    assert found.status == "warn" and "empty.pem" in found.seen


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert ask("system.tmp").status == "fail"


def test_noexec_or_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch")
    size = SimpleNamespace(f_frsize=4096, f_bavail=1 << 20, f_flag=os.ST_NOEXEC | os.ST_NOSUID)
    monkeypatch.setattr(os, "statvfs", lambda path: size)
    found = ask("system.tmp")
    assert found.status == "warn" and "/scratch is mounted noexec" in found.seen and "TMPDIR" in found.advice
    size.f_flag = os.ST_NOSUID
    assert ask("system.tmp").status == "pass"
    size.f_bavail = 1000
    found = ask("system.tmp")
    assert found.status == "warn" and "4 MiB free" in found.seen


def test_path_too_long_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    found = ask("system.tmp")
    assert found.status == "warn" and "too long a path for sockets" in found.seen and "TMPDIR" in found.advice


def test_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    found = ask("system.locale")
    assert found.status == "warn" and "ascii" in found.seen and "C.UTF-8" in found.advice


def test_time_zone_of_the_variable(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Zurich")
    found = ask("system.timezone")
    assert found.status == "warn" and "TZ=Europe/Zurich" in found.seen
    root("/usr/share/zoneinfo/Europe/Zurich")
    assert ask("system.timezone").status == "pass"


def test_time_zone_of_the_system(root: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TZ", raising=False)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "localtime").symlink_to("/usr/share/zoneinfo/gone")
    found = ask("system.timezone")
    assert found.status == "warn" and "zoneinfo/gone" in found.seen
