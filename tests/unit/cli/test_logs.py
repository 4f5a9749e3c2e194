"""The log of a command: where it is, who may read it, what it never holds, and how a failure names it."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from builder.cli import cli, run
from builder.cli.logs import log_path, start_logging, stop_logging
from builder.core.errors import BUG


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    stop_logging()


def failing(error: Exception, cache: Path) -> click.Command:
    """A command that starts a log and fails."""

    @click.command()
    def command() -> None:
        start_logging(cache)
        raise error

    return command


def test_log_of_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed command names its log, which holds the traceback."""
    assert run(cli, ["--cache", str(tmp_path / "cache"), "--project", "/dev", "targets"]) == 3
    err = capsys.readouterr().err
    log = log_path()
    assert log is not None and log.parent == tmp_path / "cache" / "logs" and f"log:  {log}" in err
    assert "Traceback" in log.read_text() and "Traceback" not in err
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_closed_terminal(tmp_path: Path) -> None:
    """Lines that cannot be shown end nothing: they come between steps that belong together."""

    def show(line: str) -> None:
        raise BrokenPipeError

    start_logging(tmp_path, verbosity=1, show=show)
    logging.getLogger("builder.deliver.publishing").info("a tag moves")
    path = log_path()
    assert path is not None and "a tag moves" in path.read_text()


def test_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is one line and its own exit code; the traceback is in the log only."""
    assert run(failing(ZeroDivisionError("of https://me:secret@host/x"), tmp_path), []) == BUG
    err = capsys.readouterr().err
    assert "a bug in builder: ZeroDivisionError: of https://host/x" in err and "report it with the log" in err
    assert "Traceback" not in err
    log = log_path()
    assert log is not None and "Traceback" in log.read_text() and "secret" not in log.read_text()


@pytest.mark.parametrize(("option", "shown"), [("-q", ""), ("-v", "info"), ("-vv", "info debug")])
def test_verbosity(option: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``-v`` shows INFO on stderr, ``-vv`` DEBUG too; the file has both in any case."""
    run(cli, ["--cache", str(tmp_path), option, "help", "completion", "bash"])
    logging.getLogger("builder.x").info("info")
    logging.getLogger("builder.x").debug("debug")
    lines = [line for line in capsys.readouterr().err.splitlines() if "x: " in line]
    assert " ".join(line.rpartition(" ")[2] for line in lines) == shown
    log = log_path()
    assert log is not None and "debug" in log.read_text()


def test_old_logs_go(tmp_path: Path) -> None:
    """The newest 50 logs stay."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for n in range(60):
        (folder / f"20200101T0000{n:02}Z-1.log").write_text("")
    start_logging(tmp_path)
    left = sorted(p.name for p in folder.iterdir())
    assert len(left) == 50 and left[0] == "20200101T000011Z-1.log"
