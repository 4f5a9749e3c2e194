"""A ``debian:`` base of an ordinary user: made by the real mmdebstrap, and what a failure leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.store.records import read_record
from tests.support.install_registries import install_mmdebstrap
from tests.support.parts import CLONE, OrdinaryUser, installed, need, need_root
from tests.support.waiting import until

pytestmark = [pytest.mark.network, pytest.mark.root]
BASE = (
    "from builder.build.bases.image import WantedBase\n"
    "from builder.build.bases.resolve import resolve_base\n"
    "from builder.core.settings import Settings\n"
    "from builder.core.workspace import Workspace\n"
    "s = Settings.from_environment()\n"
    "print(resolve_base('debian:bookworm', WantedBase('amd64'), Workspace.of(s)).digest)\n"
)
BUILDER = [sys.executable, "-m", "builder"]
SECRET = "p4ssw0rd-of-a-proxy"  # noqa: S105
CLONE_PATH = {"PYTHONPATH": str(CLONE)}


@pytest.fixture
def open_cache(ordinary_user: OrdinaryUser) -> Iterator[Path]:
    """A cache of the user that others may enter, so that mmdebstrap's tree is in it."""
    cache = ordinary_user.home.parent / f"cache-{os.getpid()}"
    cache.mkdir(mode=0o755)
    os.chown(cache, ordinary_user.uid, ordinary_user.uid)
    yield cache
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture
def with_secret(ordinary_user: OrdinaryUser, open_cache: Path) -> dict[str, str]:
    """Variables of a user whose apt has a proxy with a password."""
    need("mmdebstrap", "apt-config")
    program = ordinary_user.home.parent / "bin" / "apt-config"
    program.parent.mkdir(exist_ok=True)
    line = f'Acquire::http::Proxy::nowhere.example "http://me:{SECRET}@127.0.0.1:1";'
    program.write_text(
        f'#!/bin/sh\n{shutil.which("apt-config")} "$@" || exit\n[ "$1" != dump ] || echo \'{line}\'\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}:{ordinary_user.env['PATH']}"
    return {**ordinary_user.env, **CLONE_PATH, "PATH": path, "BUILDER_CACHE": str(open_cache)}


@contextlib.contextmanager
def half_a_base(user: OrdinaryUser, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process of the user that makes a base, and the folder of its tree, once apt has its settings."""
    command = user.command(["env", f"--chdir={user.home}", sys.executable, "-c", BASE])
    with subprocess.Popen(
        command, env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        places = (Path(env["BUILDER_CACHE"], "tmp"), user.tmp, Path("/var/tmp"), Path("/tmp"))  # noqa: S108

        def settings() -> list[Path]:
            if process.poll() is not None:
                pytest.fail(f"ended with {process.returncode}: {process.communicate()}")
            pattern = f"build-*-{process.pid}-*/mmdebstrap.*/etc/apt/auth.conf"
            return [path for place in places for path in place.glob(pattern)]

        try:
            until(lambda: settings() != [])
            yield process, settings()[0].parents[3]
        finally:
            process.kill()


def end_base(folder: Path) -> None:
    """Kills all processes that work in a tree, as a crash of the machine does."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def prune(user: OrdinaryUser, env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return user.run([*BUILDER, "cache", "prune", "--json", *options], env, check=False, timeout=300)


@pytest.mark.heavy
@pytest.mark.parametrize("who", ["root", "user"])
def test_newer_mmdebstrap(
    ordinary_user: OrdinaryUser, open_cache: Path, tmp_path: Path, base_cache: Path, who: str
) -> None:
    """mmdebstrap 1.6.0 makes the base that this machine's makes, 1.3.5 on Debian 12: the same digest.

    It writes files with holes as sparse ones, and more lines into /etc/fstab.
    """
    need_root()
    program = installed(install_mmdebstrap, "mmdebstrap")
    sparse = subprocess.run(["grep", "-c", "--", "--sparse", program], capture_output=True, text=True)
    assert int(sparse.stdout) > 0
    cache = tmp_path / "cache" if who == "root" else open_cache
    env = {**ordinary_user.env, **CLONE_PATH, "BUILDER_CACHE": str(cache)}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    if who == "root":
        done = subprocess.run([sys.executable, "-c", BASE], env=env, capture_output=True, text=True)
    else:
        command = ["env", f"--chdir={ordinary_user.home}", sys.executable, "-c", BASE]
        done = ordinary_user.run(command, env, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    digests = [read_record(path)["digest"] for path in (base_cache / "bases").glob("*.json")]
    assert digests == [done.stdout.strip()]


def test_secrets(ordinary_user: OrdinaryUser, with_secret: dict[str, str]) -> None:
    """apt's passwords are in no argument and no file for others; kill -9 of builder ends mmdebstrap."""
    need_root()
    with half_a_base(ordinary_user, with_secret) as (process, folder):
        (settings,) = folder.glob("mmdebstrap.*/etc/apt/apt.conf.d/99mmdebstrap")
        assert SECRET in settings.read_text()
        for file in (settings, settings.parents[1] / "auth.conf"):
            assert file.stat().st_mode & 0o077 == 0 and file.stat().st_uid not in (0, ordinary_user.uid)
        arguments = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not [line for line in arguments if SECRET.encode() in line]
        process.kill()
        until(lambda: not any(folder.glob("mmdebstrap.*/etc")))
    assert prune(ordinary_user, with_secret).returncode == 0 and not folder.exists()


@pytest.mark.parametrize("place", ["cache", "elsewhere"])
def test_crash(ordinary_user: OrdinaryUser, with_secret: dict[str, str], place: str) -> None:
    """A tree of subordinate ids that nobody removed: the next command does, wherever it is."""
    if place == "elsewhere":
        with_secret["BUILDER_CACHE"] = str(ordinary_user.home / "closed")
    with half_a_base(ordinary_user, with_secret) as (_, folder):
        end_base(folder)
    is_in_cache = Path(with_secret["BUILDER_CACHE"]) in folder.parents
    assert any(folder.iterdir()) and is_in_cache == (place == "cache")
    assert ordinary_user.run(["rm", "-rf", folder], check=False).returncode != 0
    done = prune(ordinary_user, with_secret)
    assert done.returncode == 0 and not folder.exists(), done.stderr
    assert json.loads(done.stdout)["not_removed"] == []


def test_prune_that_cannot(ordinary_user: OrdinaryUser, open_cache: Path) -> None:
    """What prune cannot remove is named, and its exit code is not 0."""
    need_root()
    theirs = open_cache / "tmp" / "somebody's"
    (theirs / "folder").mkdir(parents=True)
    (theirs / "folder" / "file").touch()
    os.chown(open_cache / "tmp", ordinary_user.uid, ordinary_user.uid)
    env = {**CLONE_PATH, "BUILDER_CACHE": str(open_cache)}
    for options in (("--all",), ("--older-than", "0")):
        done = prune(ordinary_user, env, *options)
        (stuck,) = json.loads(done.stdout)["not_removed"]
        assert done.returncode == 1 and theirs.is_relative_to(stuck) and "as root: rm -rf" in done.stderr
    assert (theirs / "folder" / "file").exists()


@pytest.mark.parametrize("home", ["set", "not set"])
def test_user_without_name(ordinary_user: OrdinaryUser, open_cache: Path, home: str) -> None:
    """An id without an entry in the table of users, as in containers, needs no name; nor HOME."""
    need_root()
    nameless = replace(ordinary_user, uid=ordinary_user.uid + 1)
    os.chown(open_cache, nameless.uid, nameless.uid)
    project = open_cache / "project"
    project.mkdir()
    (project / "environment.yml").write_text("dependencies: [python=3.11]\n")
    for path in (project, project / "environment.yml"):
        os.chown(path, nameless.uid, nameless.uid)
    names = ["-u", "USER", "-u", "LOGNAME"]
    names += ["-u", "HOME"] if home == "not set" else [f"HOME={open_cache}"]
    env = {**CLONE_PATH, "BUILDER_CACHE": str(open_cache / "cache"), "TMPDIR": str(open_cache)}
    for words in (["--version"], ["doctor"], ["init", "-y"], ["--offline", "build"]):
        command = ["env", *names, *BUILDER, *words]
        done = nameless.run(command, env, cwd=project, check=False, timeout=300)
        assert "bug in builder" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or "hint:" in done.stderr, (words, done.stderr)
