"""The log of a command: where it is, who may read it, what it never holds, and how a failure names it."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import pytest

from builder.cli import cli, run
from builder.cli.logs import log_path, start_logging, stop_logging
from builder.core.errors import BUG
from tests.support.cli import Cli
from tests.support.project import TinyProject

TOKEN_URL = "https://host.example/t/marked-token-4711/channel/noarch/x.conda"


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


@pytest.mark.parametrize("file", ["/dev/full", "log"])
def test_log_cannot_be_written(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a full disk is closed, once and with one line; nothing of what it would hold is shown."""
    shown: list[str] = []
    path = tmp_path / file  # an absolute name stays as it is
    start_logging(tmp_path / "cache", path, show=shown.append)
    if file == "log":
        handler = next(h for h in logging.getLogger("builder").handlers if isinstance(h, logging.FileHandler))

        def full(text: str) -> int:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        monkeypatch.setattr(handler, "stream", Mock(write=full))
    before = path.stat().st_size
    for name in ("httpx2", "builder.formats", "builder.output"):
        logging.getLogger(name).warning(
            "HTTP Request: %s %s", "GET", TOKEN_URL, exc_info=ValueError(TOKEN_URL)
        )
    why = "Disk quota exceeded" if file == "log" else "No space left on device"
    assert len(shown) == 1 and f"the log {path} ends here" in shown[0] and why in shown[0], shown
    out, err = capsys.readouterr()
    assert out == err == "" and log_path() is None and path.stat().st_size == before


def test_wrong_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with wrong arguments, and a handler of a library that cannot write, show no arguments."""
    stream = Mock(write=Mock(side_effect=OSError(errno.ENOSPC, "full")))
    start_logging(tmp_path, show=lambda line: None)
    other, library = logging.StreamHandler(stream), logging.getLogger("some.library")
    library.addHandler(other)
    try:
        library.warning("%s", TOKEN_URL)
        logging.getLogger("httpx2").warning("%s", "GET", TOKEN_URL)
    finally:
        library.removeHandler(other)
    out, err = capsys.readouterr()
    assert stream.write.called and "marked" not in out + err and "Traceback" not in out + err


def test_command_goes_on(copy: TinyProject, do: Cli) -> None:
    """A build whose log cannot be written succeeds, and says so in one line."""
    done = do("--log-file", "/dev/full", "build", "tiny")
    lines = [line for line in done.err.splitlines() if "/dev/full" in line]
    assert done.code == 0 and len(lines) == 1 and "Traceback" not in done.err and "Arguments" not in done.err
