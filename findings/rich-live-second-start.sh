#!/usr/bin/env bash
# A transient Live of rich that is stopped and started again erases lines that were printed in between.
#
# Versions: rich 15.0.0, Python 3.11.
# Behaviour: stop() removes the display, start() draws it again, but first moves up by the height that it had, less
# one, and erases what is there now: the output of the program. Nothing says that a Live is for one start.
# Output seen, what the second start writes over "result 1" and "result 2" ("<up>": a line up, "<erase>": erased):
#   <erase><up><erase><up><erase>three lines
# Who is hurt: programs that take the display away while they print to stdout or ask a question.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet rich==15.0.0
cat >"$work/live.py" <<'PYTHON'
import io

from rich.console import Console
from rich.live import Live

terminal = io.StringIO()
console = Console(file=terminal, force_terminal=True, force_interactive=True, width=40)
live = Live("three lines\nof a\ndisplay", console=console, auto_refresh=False, transient=True)
live.start(refresh=True)
live.stop()
print("result 1\nresult 2", file=terminal)
before = terminal.tell()
live.start(refresh=True)
second = terminal.getvalue()[before:].partition("\r")[2].splitlines()[0]
live.stop()
print(second.replace("\x1b[2K", "<erase>").replace("\x1b[1A", "<up>"))
PYTHON
seen=$("$work/venv/bin/python" "$work/live.py")
echo "$seen"
[[ $seen == "<erase><up><erase><up><erase>three lines" ]]
