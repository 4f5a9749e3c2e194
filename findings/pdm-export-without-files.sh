#!/usr/bin/env bash
# pdm exports a pylock.toml without files, with exit code 0, beside a newer version of a library that it uses.
#
# Versions: pdm 2.29.4, Python 3.11; hishel 2.0.0 and 1.4.0; six 1.17.0 as the package.
# Behaviour: pdm 2.29.4 accepts any hishel, and hishel 2 has no SyncSqliteStorage. pdm lock fails then with an
# AttributeError; pdm export -f pylock, which asks the index for the URLs of the files, hides the same error: it
# writes packages that have neither wheels nor an sdist, which PEP 751 does not allow. A pdm.lock of earlier times, or
# of a colleague's machine, is enough. With hishel 1.4.0 the same command writes both files.
# Output seen:
#   hishel 2.0.0: exit code 0, 0 wheels
#   hishel 1.4.0: exit code 0, 1 wheels
# Who is hurt: whoever exports in CI, where pdm is installed anew each time. The file is written and committed,
# and packaging 26.4 refuses it later: "Exactly one of vcs, directory, archive must be set".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/project"
cat >"$work/project/pyproject.toml" <<'TOML'
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["six==1.17.0"]
TOML
for version in 1.4.0 2.0.0; do
    python3 -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet pdm==2.29.4 "hishel==$version"
done
export HOME=$work PDM_CHECK_UPDATE=0
cd "$work/project"
"$work/1.4.0/bin/pdm" lock --quiet 2>"$work/log"

wheels() { # VERSION: the number of wheels that pdm exports with it
    rm -f pylock.toml
    "$work/$1/bin/pdm" export --quiet -f pylock -o pylock.toml
    grep -c '\.whl' pylock.toml || true
}

newer=$(wheels 2.0.0)
older=$(wheels 1.4.0)
echo "hishel 2.0.0: exit code 0, $newer wheels"
echo "hishel 1.4.0: exit code 0, $older wheels"
[ "$newer" = 0 ] && [ "$older" = 1 ]
