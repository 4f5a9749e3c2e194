"""Runs a program in a pseudo-terminal, and shows what is on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Escapes, control characters and text, as a terminal obeys them.
_PARTS = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]")
_STYLE = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True)
class Shown:
    """What a program wrote to its terminal."""

    raw: str
    code: int
    columns: int

    @property
    def text(self) -> str:
        """The same without colours."""
        return _STYLE.sub("", self.raw).replace("\r\n", "\n")

    @property
    def screen(self) -> list[str]:
        """The lines that are left at the end; a line that is too long continues on the next one."""
        rows, row, column = [""], 0, 0
        for part in _PARTS.finditer(self.raw):
            text, count, action = part[0], part[1], part[2]
            if text == "\r":
                column = 0
            elif action == "A":
                row -= int(count or 1)
            elif action == "K":
                rows[row] = {"": rows[row][:column], "0": rows[row][:column], "2": ""}[count]
            elif text == "\n" or (not action and column == self.columns):
                row, column = row + 1, column if text == "\n" else 0
                rows += [""] * (row + 1 - len(rows))
            if not action and text not in "\r\n":
                rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + 1 :]
                column += 1
        return [line.rstrip() for line in rows if line.strip()]


def in_terminal(
    command: Sequence[str | Path],
    *,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    after: Sequence[tuple[str, str]] = (),
) -> Shown:
    """Runs a program whose input and outputs are a terminal, until it ends.

    Args:
        command: the program and its arguments.
        columns: of the terminal.
        env: variables that differ from those of the tests; empty ones are as if they were not set.
        cwd: where it starts.
        after: texts that the program writes in this order, and what happens then: ``close`` closes the
            terminal, as the end of an SSH session does, ``interrupt`` is Ctrl-C; anything else is typed,
            without an echo.
    """
    usual = {"TERM": "xterm-256color", "COLUMNS": "", "NO_COLOR": ""}
    variables = {k: v for k, v in {**os.environ, **usual, **(env or {})}.items() if v}
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    mode = termios.tcgetattr(slave)
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    words = list(map(str, command))
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=variables, cwd=cwd, start_new_session=True
    ) as process:
        os.close(slave)
        written, seen, waiting = b"", 0, list(after)
        while master >= 0 and (part := _read(master)):
            written += part
            plain = _STYLE.sub("", written.decode(errors="replace"))
            while waiting and (found := plain.find(waiting[0][0], seen)) >= 0:
                seen, (_, action) = found + 1, waiting.pop(0)
                if action == "interrupt":
                    process.send_signal(signal.SIGINT)
                elif action == "close":
                    os.close(master)
                    master = -1
                else:
                    os.write(master, action.encode())
        if process.poll() is None and waiting:
            process.kill()
    if master >= 0:
        os.close(master)
    assert not waiting, f"{waiting[0][0]!r} is not in {written!r}"
    return Shown(written.decode(), process.returncode, columns)


def _read(terminal: int) -> bytes:
    """Reads what was written; empty: no program has the terminal open any more, or one writes nothing for
    two minutes.
    """
    with contextlib.suppress(OSError):  # EIO
        if select.select([terminal], [], [], 120)[0]:
            return os.read(terminal, 1 << 16)
    return b""
