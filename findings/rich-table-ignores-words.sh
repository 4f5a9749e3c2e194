#!/usr/bin/env bash
# A rich table loses the ends of long words with overflow="ignore", the setting that leaves them alone elsewhere.
#
# Versions: rich 15.0.0, Python 3.11.
# Behaviour: Text with overflow="ignore" and crop=False is printed whole, wider than the console. A cell of a
# Table with the same settings ends at its column, without a mark; "fold" breaks it, "ellipsis" shortens it.
# No setting lets a word stick out of the last column.
# Output seen:
#   text:  /project/climate/ensemble/cache/of/many/files
#   table: cache  /project/climate/en
# Who is hurt: commands that list paths, digests or URLs to be copied; the path that is shown does not exist.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet rich==15.0.0
cat >"$work/table.py" <<'PYTHON'
from rich.console import Console
from rich.table import Table
from rich.text import Text

path = "/project/climate/ensemble/cache/of/many/files"
console = Console(width=26)
print("text: ", end=" ", flush=True)
console.print(Text(path), overflow="ignore", crop=False)
table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
table.add_column()
table.add_column(overflow="ignore")
table.add_row("cache", Text(path))
print("table:", end=" ", flush=True)
console.print(table, overflow="ignore", crop=False)
PYTHON
"$work/venv/bin/python" "$work/table.py" | tee "$work/seen"
grep -q '^text:  /project/climate/ensemble/cache/of/many/files$' "$work/seen"
grep -q '^table: cache  /project/climate/' "$work/seen"
[[ $(grep -c 'files' "$work/seen") == 1 ]]
