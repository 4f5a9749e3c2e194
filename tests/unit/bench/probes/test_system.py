"""Probes of the container and its share of the machine."""

from __future__ import annotations

import errno
import os
import site
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.bench.machine import processor
from tests.support.fake_torch import fake_torch
from tests.support.smoke import ask, ask_run, make_run
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


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home directory that is mounted from elsewhere."""
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_mounted(home: Path) -> None:
    found = ask("system.home")
    assert found.status == "pass" and "(mounted)" in found.seen


def test_python_from_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", f"{home}/venv")
    found = ask("system.home")
    assert found.status == "fail" and "python runs from" in found.seen


def test_not_writable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file is really made: root may write everywhere by the permissions, and /proc takes none."""
    monkeypatch.setenv("HOME", "/proc")
    found = ask("system.home")
    assert found.status == "warn" and "HOME=/proc cannot be written: No such file" in found.seen
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ask("system.home").status == "pass" and list(tmp_path.iterdir()) == []


def test_full_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(dir: str) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", dir)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert "cannot be written: Disk quota exceeded" in ask("system.home").seen


USER_SITE = "/home/somebody/.local/lib/python3.11/site-packages"


def test_packages_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework from the home directory hides the image's; other packages there may be wanted."""
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(site, "getusersitepackages", lambda: USER_SITE)
    torch = fake_torch("CPU")
    assert ask("python.path", torch).status == "pass"
    torch.__file__ = f"{USER_SITE}/torch/__init__.py"
    assert ask("python.path", torch).status == "fail"


def test_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    assert ask("python.path").status == "pass"
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = ask("python.path")
    assert found.status == "warn" and "PYTHONPATH=/elsewhere" in found.seen
    assert ask("python.path", python_path="/elsewhere").status == "pass"
    monkeypatch.setenv("PYTHONPATH", "/elsewhere:/host")
    assert ask("python.path", python_path="/elsewhere").status == "warn"


def use_cores(monkeypatch: pytest.MonkeyPatch, cores: set[int], total: int) -> None:
    monkeypatch.setattr(processor, "affinity", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: total)


def test_hardware_threads(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two hardware threads of a core are one core."""
    for core in (3, 67):
        root(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", "3,67")
    use_cores(monkeypatch, {3, 67}, 128)
    found = ask("cpu.affinity")
    assert found.status == "fail" and "threads of one core" in found.advice
    use_cores(monkeypatch, {3, 67, 4, 68}, 128)
    assert ask("cpu.affinity").status == "pass"


def test_quota_below_one_core(root: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, {0, 1}, 2)
    root("/sys/fs/cgroup/cpu.max", "50000 100000")
    found = ask("cpu.affinity")
    assert found.status == "warn" and "a quota of 0.5" in found.seen
    root("/sys/fs/cgroup/cpu.max", "max 100000")
    assert "quota" not in ask("cpu.affinity").seen


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cores(monkeypatch, set(range(8)), 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert ask("cpu.affinity", expect="none").status == "pass"
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    found = ask("cpu.affinity", expect="none")
    assert found.status == "warn" and "OMP_NUM_THREADS=16" in found.seen


def test_budget() -> None:
    run = make_run()
    assert ask_run("time.budget", run).status == "pass"
    run.missed = ["conv.training", "imports"]
    found = ask_run("time.budget", run)
    assert found.status == "warn" and "not enough for conv.training, imports" in found.seen
    assert "machine is slow" in found.advice
    run.options.budget = 12.0
    assert ask_run("time.budget", run).advice == "allow more time: --budget"
