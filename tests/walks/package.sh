#!/bin/sh
# A project with a package of its own: runs that write files, an edit of the package, and a publish.
set -eu
builder init -y
builder build
unset BUILDER_MIRRORS
builder run -- python train.py
builder run -- python train.py
builder lock --check
sed -i s/one/two/ src/mine/__init__.py
builder run -- hello >hello.txt
grep two hello.txt
builder publish --to "$REGISTRY/package"
