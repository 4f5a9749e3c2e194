"""Makes the pictures of the README again, from a real run: ``make pictures`` (needs chromium for the report).

docs/pictures/first-image.svg   from environment.yml to a published image, as it looks in a terminal
docs/pictures/report.png        the upper part of a report
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
sys.path.insert(0, str(ROOT))
#: What a user types after the installation.
COMMANDS = (
    "builder init -y",
    "builder build",
    "builder run",
    "builder publish --to oci:../registry/mine",
    "builder publish --to oci:../registry/mine",
)
_COLUMNS = 80
_SHOWN_PX = (1100, 760)


def tutorial_files(folder: Path) -> None:
    """Writes environment.yml and train.py of the tutorial."""
    text = (ROOT / "docs/tutorial.md").read_text()
    for name in ("environment.yml", "train.py"):
        found = re.search(rf"`{re.escape(name)}`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
        assert found is not None, name
        (folder / name).write_text(found[1])


def shown(command: str, folder: Path, home: Path) -> str:
    """Runs a command; returns what it printed, with names of this machine replaced."""
    words = command.removeprefix("builder ").split()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(_COLUMNS)}
    done = subprocess.run(
        [sys.executable, "-m", "builder", *words],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.replace(str(home), "~").rstrip("\n")


def transcript(commands: tuple[str, ...], folder: Path, home: Path) -> Console:
    """Runs the commands and records how they look in a terminal."""
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    for command in commands:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        lines = [re.sub(r"\s+$", "", line) for line in shown(command, folder, home).splitlines()]
        console.print(Text("\n".join(lines)))
        console.print()
    return console


def save_svg(console: Console, path: Path) -> None:
    """Writes the record as an SVG that loads no font from elsewhere."""
    svg = console.export_svg(title="builder", unique_id="builder")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def save_report(page: Path, path: Path) -> None:
    """Writes a picture of the upper part of a report."""
    from tests.support.chromium import chromium

    width, height = _SHOWN_PX
    with chromium() as browser:
        browser.show(page, width=width, height=height)
        browser.screenshot(path, whole=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--report", type=Path, help="the page of a report; default: of the project made here"
    )
    arguments = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        folder.mkdir()
        tutorial_files(folder)
        save_svg(transcript(COMMANDS, folder, Path(temporary)), PICTURES / "first-image.svg")
        if arguments.report is None:
            shown("builder report", folder, Path(temporary))
        save_report(
            arguments.report or next(folder.glob("reports/*.html")), PICTURES / "report.png"
        )


if __name__ == "__main__":
    main()
