"""A project with a CPU target and one of Chameleon's, and a container program that only answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.cli import cli, run
from builder.services import engine
from builder.services.state import PORTS

RECIPE = """\
extends: _base
description: a training target
"""
BASE = """\
base: debian:bookworm
environment: environments/any.yml
virtual_packages: {__glibc: "2.36"}
registry: {repository: builder/trained}
"""
ENVIRONMENT = "name: any\nchannels: [conda-forge, nodefaults]\ndependencies: [python=3.11]\n"
#: Answers like docker; writes each command line to a file. Containers are those that a file lists.
PROGRAM = """\
#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$1 $2" in
    "compose version") exit "$(cat "$here/compose" 2>/dev/null || echo 0)" ;;
    "image inspect") test -e "$here/images" && echo sha256:0123456789abcdef0123 ;;
    exec*) echo "postgres (PostgreSQL) 15.20 (Debian)" ;;
    "ps --all") cat "$here/containers" 2>/dev/null || true ;;
esac
"""


@dataclass(frozen=True)
class Program:
    """The container program."""

    folder: Path

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "project"
    for folder in ("recipes", "environments"):
        (root / folder).mkdir(parents=True)
    (root / "environments/any.yml").write_text(ENVIRONMENT)
    (root / "recipes/_base.yaml").write_text(BASE)
    (root / "recipes/trained.yaml").write_text(RECIPE)
    (root / "recipes/a100.yaml").write_text(RECIPE + "site: chameleon-a100\n")
    (root / "recipes/lumi.yaml").write_text(RECIPE + "site: lumi-g\n")
    for name, value in {
        "XDG_STATE_HOME": tmp_path / "state",
        "BUILDER_CACHE": tmp_path / "cache",
        "HOME": tmp_path,
        "COLUMNS": "110",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("BUILDER_SERVICES", raising=False)
    monkeypatch.chdir(root)
    yield root
    monkeypatch.undo()


@pytest.fixture
def docker(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(PROGRAM)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    is_taken = engine.is_taken  # another program of this machine may have one of the usual ports
    monkeypatch.setattr(engine, "is_taken", lambda port: port not in PORTS.values() and is_taken(port))
    return Program(folder)


Fails = Callable[..., str]


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs ``builder services ARGS``, which has to fail; returns its error and hint as one line."""

    def call(*args: str) -> str:
        code = run(cli, ["--json", "services", *args])
        found = json.loads(capsys.readouterr().out)
        assert code == found["code"] != 0
        return f"{found['error']} -> {found['hint']}"

    return call
