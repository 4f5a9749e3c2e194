#!/usr/bin/env bash
# A folder with a text file alone stops the build of a package that built a minute ago.
#
# Versions: setuptools 80.9.0 with pip 25.3, Python 3.11.
# Behaviour: in a flat layout (the package's folder beside pyproject.toml) without a list of packages, setuptools
# takes every folder at the top whose name is an identifier for a package, also one without any Python file, since
# it could be a namespace package. Only some names are known to be something else ("data" is not one of them,
# "build", "docs" and "tests" are). With two candidates it refuses to build.
# Output seen: the first wheel is built. After "mkdir outputs; echo 0.9 >outputs/accuracy.txt":
#   error: Multiple top-level packages discovered in a flat-layout: ['model', 'outputs'].
# Who is hurt: everybody whose training writes outputs/, runs/ or checkpoints/ into the project: the first
# "pip install ." works, and the one after the first run does not. In a src layout nothing happens.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip==25.3 setuptools==80.9.0

mkdir -p "$work/project/model"
cd "$work/project"
printf '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n' >pyproject.toml
printf '[project]\nname = "model"\nversion = "1"\n' >>pyproject.toml
echo 'print("trained")' >model/__init__.py
build() { "$work/venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/$1" . 2>&1; }

build before
ls "$work/before"/model-1-*.whl
rm -rf build ./*.egg-info
mkdir outputs
echo 0.9 >outputs/accuracy.txt
if text=$(build after); then
    echo "changed: the wheel is built with a folder of results beside the package" >&2
    exit 1
fi
grep -o "Multiple top-level packages discovered in a flat-layout: .*outputs.*" <<<"$text"
