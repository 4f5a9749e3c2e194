#!/usr/bin/env bash
# A pattern such as data[!0-9]raw leaves out the file data/raw, which git keeps.
#
# Versions: pathspec 1.1.1, git 2.39, Python 3.11.
# Behaviour: for git a bracket never stands for the slash between two folders, negated or not. pathspec turns [!0-9]
# into a class of a regular expression that holds the slash, also in GitIgnoreSpec, which follows git elsewhere.
# Output seen: data-raw: pathspec ignores, git ignores; data/raw: pathspec ignores, git keeps
# Who is hurt: tools that copy, pack or lint what .gitignore leaves (linters, build backends, packers of images and of
# wheels): a file is missing there, though git tracks it, and nothing says so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pathspec==1.1.1
git init --quiet "$work/project"
cd "$work/project"
echo 'data[!0-9]raw' >.gitignore

by_git() { if git check-ignore --quiet "$1"; then echo ignores; else echo keeps; fi; }
by_pathspec() {
    "$work/venv/bin/python" - "$1" <<'END'
import sys
from pathspec import GitIgnoreSpec

spec = GitIgnoreSpec.from_lines(open(".gitignore"))
print("ignores" if spec.match_file(sys.argv[1]) else "keeps")
END
}

for path in data-raw data/raw; do
    echo "$path: pathspec $(by_pathspec "$path"), git $(by_git "$path")"
done
[[ $(by_pathspec data-raw) == ignores && $(by_git data-raw) == ignores ]]
if [[ $(by_pathspec data/raw) != ignores || $(by_git data/raw) != keeps ]]; then
    echo "changed: pathspec and git agree on data/raw" >&2
    exit 1
fi
