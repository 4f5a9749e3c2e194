"""Makes the pictures of the documentation again: ``make pictures``.

docs/pictures/first-image.svg   from environment.yml to a published image, as it looks in a terminal
docs/pictures/report.png        the upper part of a report: only with --report PAGE, and chromium
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from screen import Screen  # noqa: E402

#: What a user types after the installation.
COMMANDS = (
    "builder init -y",
    "builder build",
    "builder run",
    "builder publish --to oci:../registry/mine",
    "builder publish --to oci:../registry/mine",
)
_COLUMNS, _ROWS = 80, 50
_SHOWN_PX = (1100, 760)


def tutorial_files(folder: Path) -> None:
    """Writes environment.yml and train.py of the tutorial."""
    text = (ROOT / "docs/tutorial.md").read_text()
    for name in ("environment.yml", "train.py"):
        found = re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
        assert found is not None, name
        (folder / name).write_text(found[1])


def started(command: str, folder: Path, output: int) -> subprocess.Popen[bytes]:
    """Starts a command whose output and messages go to a file descriptor; its cache is beside the folder."""
    env = {name: text for name, text in os.environ.items() if name not in ("CI", "NO_COLOR")}
    env |= {"PYTHONPATH": str(ROOT), "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"}
    env |= {"BUILDER_CACHE": str(folder.with_name("cache"))}
    words = [sys.executable, "-m", *command.split()]
    null = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=folder, env=env, stdin=null, stdout=output, stderr=output)


def shown(command: str, folder: Path, home: Path) -> list[str]:
    """Runs a command in a terminal; returns the lines that it shows at the end, with their colours.

    The user's home is ``~``.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    process = started(command, folder, theirs)
    os.close(theirs)
    printed = bytearray()
    with contextlib.suppress(OSError):  # EIO: the last process has closed the terminal
        while data := os.read(ours, 1 << 16):
            printed += data
    os.close(ours)
    screen = Screen(_COLUMNS)
    screen.feed(printed.decode().replace(str(home), "~"))
    if code := process.wait():
        raise SystemExit(f"{command} ended with {code}:\n" + "\n".join(screen.lines()))
    return screen.lines()


def transcript(commands: tuple[str, ...], folder: Path, home: Path) -> Console:
    """Runs the commands and records how they look in a terminal."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        for line in shown(command, folder, home):
            text = Text.from_ansi(line)
            for row in text.divide(range(_COLUMNS, len(text), _COLUMNS)):
                console.print(row)
        console.print()
    return console


def words(svg: str) -> str:
    """Returns the text of a picture line by line, with N for digests, amounts and times.

    Lines that depend on the network and on what is cached are left out: Docker Hub, and the base image.
    """
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text)))
    lines = ("".join(text for _, text in sorted(row)) for _, row in sorted(rows.items()))
    text = "\n".join([*lines, ""]).replace("\xa0", " ")
    text = re.sub(r"(?<=sha256:)[0-9a-f]+(\n[0-9a-f]+$)?", "N", text, flags=re.MULTILINE)
    text = re.sub(r"\d+(?:[.,]\d+)*", "N", text)
    text = re.sub(r"\bN (?:[kMGT]?B|s|min(?: N s)?)(?!\w)", "N", text)
    return re.sub(r"^(?:Docker Hub |base ).*\n", "", text, flags=re.MULTILINE)


def save_svg(console: Console, path: Path) -> None:
    """Writes the record as an SVG that loads no font from elsewhere."""
    svg = console.export_svg(title="builder", unique_id="builder")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def first_image(picture: Path) -> None:
    """Draws what the commands of the tutorial print in a project, with an empty cache."""
    # The length of the folder's name decides where lines are wrapped.
    with tempfile.TemporaryDirectory(prefix="b-", dir="/tmp") as home:
        folder = Path(home) / "project"
        folder.mkdir()
        tutorial_files(folder)
        save_svg(transcript(COMMANDS, folder, Path(home)), picture)


def save_report(page: Path, path: Path) -> None:
    """Writes a picture of the upper part of a report."""
    from tests.support.chromium import chromium

    width, height = _SHOWN_PX
    with chromium() as browser:
        browser.show(page, width=width, height=height)
        browser.screenshot(path, whole=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--report", type=Path, help="a page of builder report, of runs on a GPU")
    arguments = parser.parse_args()
    first_image(PICTURES / "first-image.svg")
    if arguments.report is not None:
        save_report(arguments.report, PICTURES / "report.png")


if __name__ == "__main__":
    main()
