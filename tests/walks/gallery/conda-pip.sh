#!/bin/sh
# An example, copied and run: a conda environment with pip packages.
set -eu
cp -r builder-clone/examples/conda-pip digits
cd digits
builder build
builder run
test -s confusion.png
builder smoke
